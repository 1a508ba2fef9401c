// Bodies of all endpoints become requests.
//
// Thread: any. Pure: the same body and options give the same request, or the same error. Every error
// has a status (400, or 404 for an unknown model), the field, and one sentence.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/api_error.h"
#include "coordinator/api/api_request.h"
#include "coordinator/api/endpoint.h"
#include "coordinator/text/tools/tool_request.h"
#include "planner/base/status.h"

namespace lime {

struct ParseOptions {
  std::vector<std::string> models;  // names that are served; empty: any
  int64_t vocab_size = 0;           // ids are below it; 0: not known
  // Names, descriptions and schemas of `tools`, in the form of ChatPrompt::tools. May be empty.
  std::function<std::optional<ToolFault>(const Json& tools)> check_tools;
  // Whether answers can be held to a schema. An error's message is the end of a sentence, without
  // its full stop, and names the path in the schema. May be empty.
  std::function<absl::Status(std::string_view schema)> check_schema;
};

// Bounds that the manual states.
inline constexpr int32_t kMaxChoices = 16;           // of one prompt
inline constexpr int64_t kMaxAllChoices = 2048;      // of all prompts of a request
inline constexpr size_t kMaxStops = 4;               // stop strings
inline constexpr size_t kMaxOllamaStops = 16;        // the same in Ollama's options
inline constexpr size_t kMaxStopBytes = 4096;        // of one
inline constexpr size_t kMaxLogitBiases = 1024;      // ids in logit_bias
inline constexpr size_t kMaxMessages = 16'384;       // messages, or items of responses
inline constexpr size_t kMaxTools = 1024;            // tools, or calls of a message
inline constexpr size_t kMaxSchemaBytes = 64 << 10;  // in one line

// REQUIRES: `endpoint` is one that takes a body.
ApiResult<ApiRequest> ParseRequest(Endpoint endpoint, std::string_view body, const ParseOptions& options);

// The variables of the model's template for a chat prompt: the arguments of template_kwargs, then
// messages, tools (only if there are any) and add_generation_prompt. The arguments of calls are
// objects where they are JSON, else text.
Json TemplateVariables(const ChatPrompt& prompt);

}  // namespace lime
