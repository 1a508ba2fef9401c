// What the tokens of an answer may be, as RequestSampling::format says it: calls that are forced or
// have begun, and JSON by a schema, behind the thinking.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/api/api_error.h"
#include "coordinator/api/api_request.h"
#include "coordinator/text/tools/thinking.h"
#include "coordinator/text/tools/tool_format.h"
#include "coordinator/text/tools/tool_request.h"

namespace lime {

struct MaskOptions {
  ToolFormat tool_format;
  ThinkingSplitter::Start thinking = ThinkingSplitter::Start::kOff;
  std::string_view tools_param = "tools";  // where the request has them
  std::string_view format_param = "response_format";
};

// Empty: any tokens. With tool_choice auto and no format, the mask begins where a call does; it is
// left out if the functions are too long for it (json_schema::kMaxFormatBytes), since calls are read
// without it as well.
// Errors: functions or a schema that cannot be written so. The schemas themselves are checked
// already (ServedModel::parse_options).
ApiResult<std::string> MaskFormat(const ToolRequest& tools, const AnswerFormat& format, const MaskOptions& options);

}  // namespace lime
