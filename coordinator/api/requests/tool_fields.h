// Tools, and which of them the model has to call.
#pragma once

#include <vector>

#include "coordinator/api/requests/parse_request.h"
#include "coordinator/api/requests/request_fields.h"

namespace lime {

// `tools` and `tool_choice` of chat completions. Ollama's tools are the same.
void ReadChatTools(RequestFields& fields, const ParseOptions& options, ApiRequest& request);
// Those of responses: functions are flat, a custom tool is a function of one string `input`, others
// are skipped.
void ReadResponsesTools(RequestFields& fields, const ParseOptions& options, ApiRequest& request);

}  // namespace lime
