// The messages of a request, made ready for a template of harmony messages.
#pragma once

#include "nlohmann/json_fwd.hpp"

namespace lime {

// Such a template has the reasoning of a message as `thinking`, and shows one call of a message and
// the results behind it. So a message with several calls becomes several, each with its result
// behind it. The text beside a call becomes part of its thinking, since the template shows it so,
// but refuses both. Functions without a description get an empty one.
// `variables`: of a template, with "messages", and "tools" where there are any.
// REQUIRES: both are lists of objects.
void AdaptToHarmony(nlohmann::ordered_json& variables);

}  // namespace lime
