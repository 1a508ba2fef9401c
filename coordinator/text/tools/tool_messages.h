// The messages of a request, made ready for a chat template.
#pragma once

#include "coordinator/text/tools/tool_format.h"
#include "nlohmann/json_fwd.hpp"

namespace lime {

// For a template that does not show functions (ToolFormat::stated). A system message says which
// functions there are, from `tools` as the request has them, and how to call one. It becomes part
// of the first message if that is a system message. Earlier calls become text of the assistant, and
// results become messages of the user, because such a template may not know them either.
// Without `tools` there is no system message of ours.
// REQUIRES: `messages` and `tools` are lists of objects.
void StateTools(const ToolFormat& format, const nlohmann::ordered_json& tools, nlohmann::ordered_json& messages);

}  // namespace lime
