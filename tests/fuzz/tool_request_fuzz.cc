// Hostile "tools", "tool_choice" and "messages" of a request, in JSON.
#include <cstdint>
#include <cstdlib>

#include "coordinator/api/requests/parse_request.h"
#include "coordinator/text/tools/call_frames.h"
#include "coordinator/text/tools/harmony_messages.h"
#include "coordinator/text/tools/schema_types.h"
#include "coordinator/text/tools/tool_messages.h"
#include "coordinator/text/tools/tool_request.h"

namespace lime {
namespace {

void Try(std::string_view text) {
  const ApiResult<ApiRequest> request = ParseRequest(Endpoint::kApplyTemplate, text, {});
  if (!request.ok()) return;
  const ChatPrompt& prompt = *request->chat();
  ToolRequest tools = {.choice = request->tool_choice, .parallel = request->parallel_tool_calls};
  if (const auto fault = ReadFunctions(prompt.tools, nullptr, tools.functions)) {
    if (fault->code.empty() || fault->message.empty() || fault->tool >= prompt.tools.size()) std::abort();
    return;
  }
  for (int syntax = 0; syntax <= static_cast<int>(ToolSyntax::kHarmony); ++syntax) {
    const ToolFormat format{.syntax = static_cast<ToolSyntax>(syntax)};
    if (tools.choice.mode != ToolChoice::Mode::kNone) (void)FrameCalls(format, tools);
    Json messages = TemplateVariables(prompt).at("messages");
    StateTools(format, prompt.tools, messages);
  }
  Json variables = TemplateVariables(prompt);
  AdaptToHarmony(variables);
  for (const ToolFunction& function : tools.functions) (void)TypesOfArgument(function.parameters, "a");
}

}  // namespace
}  // namespace lime

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lime::Try(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
