#include "coordinator/text/tools/call_frames.h"

#include <algorithm>
#include <string_view>

#include "coordinator/text/tools/call_text.h"

namespace lime {
namespace {

using Json = nlohmann::ordered_json;

ParameterFrame FrameParameter(const std::string& key, bool is_required) {
  return {.key = key, .prefix = ParameterPrefix(key), .is_required = is_required, .suffix = std::string(kParameterSuffix)};
}

// The strings in a list.
std::vector<std::string> StringsOf(const Json& object, const char* key) {
  std::vector<std::string> strings;
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array()) return strings;
  for (const Json& entry : *list) {
    if (entry.is_string()) strings.push_back(entry.get<std::string>());
  }
  return strings;
}

absl::Status FrameParameters(const ToolFunction& function, std::vector<ParameterFrame>& frames) {
  std::vector<std::string> required = StringsOf(function.parameters, "required");
  for (const std::string& key : required) {
    if (CanBeParameter(key)) continue;
    return Invalid("function ", function.name,
                   " requires a parameter that the syntax qwen3-coder cannot name; rename it, or use another "
                   "--tool-format");
  }
  const auto properties = function.parameters.find("properties");
  if (properties != function.parameters.end() && properties->is_object()) {
    for (const auto& property : properties->items()) {
      const std::string& key = property.key();
      const auto found = std::ranges::find(required, key);
      const bool is_required = found != required.end();
      if (CanBeParameter(key)) frames.push_back(FrameParameter(key, is_required));
      if (is_required) required.erase(found);
    }
  }
  for (const std::string& key : required) frames.push_back(FrameParameter(key, true));
  return absl::OkStatus();
}

std::vector<MaskStart> StartsOf(const ToolFormat& format) {
  switch (format.syntax) {
    case ToolSyntax::kMistral:
      return {{"[TOOL_CALLS]", false, std::string_view("[TOOL_CALLS]").size()}};
    case ToolSyntax::kLlama3:
      return {{"<|python_tag|>", true, 0}, {"{\"name\": \"", true, std::string_view("{\"name\": \"").size()}};
    default:
      return {{"<tool_call>", false, std::string_view("<tool_call>").size()}};
  }
}

}  // namespace

absl::StatusOr<CallFrames> FrameCalls(const ToolFormat& format, const ToolRequest& request) {
  CallFrames frames;
  const CallsText text = CallsTextOf(format);
  frames.opening = text.opening;
  frames.separator = text.separator;
  frames.closing = text.closing;
  const std::string* only = request.choice.mode == ToolChoice::Mode::kFunction ? &request.choice.function : nullptr;
  frames.one_call = !request.parallel || only != nullptr || format.syntax == ToolSyntax::kLlama3;
  frames.starts = StartsOf(format);
  for (const ToolFunction& function : request.functions) {
    if (only != nullptr && function.name != *only) continue;
    CallFrame frame;
    frame.function = &function;
    frame.prefix = CallPrefix(format, function.name);
    frame.by_parameter = format.syntax == ToolSyntax::kQwen3Coder;
    if (frame.by_parameter) LIME_RETURN_IF_ERROR(FrameParameters(function, frame.parameters));
    frame.suffix = CallSuffix(format);
    frames.alternatives.push_back(std::move(frame));
  }
  return frames;
}

}  // namespace lime
