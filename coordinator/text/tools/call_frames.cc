#include "coordinator/text/tools/call_frames.h"

#include <algorithm>
#include <string_view>

#include "coordinator/text/tools/call_text.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

using Json = nlohmann::ordered_json;

ParameterFrame FrameParameter(const ParameterTags& tags, const std::string& key, bool is_required) {
  return {.key = key, .prefix = ParameterPrefix(tags, key), .is_required = is_required, .suffix = ParameterSuffix(tags)};
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

absl::Status FrameParameters(const ToolFunction& function, ToolSyntax syntax, std::vector<ParameterFrame>& frames) {
  const ParameterTags& tags = *ParameterTagsOf(syntax);
  std::vector<std::string> required = StringsOf(function.parameters, "required");
  for (const std::string& key : required) {
    if (CanBeParameter(tags, key)) continue;
    return Invalid("function ", function.name, " requires a parameter that the syntax ", Text(ToolSyntaxName(syntax)),
                   " cannot name; rename it, or use another --tool-format");
  }
  const auto properties = function.parameters.find("properties");
  if (properties != function.parameters.end() && properties->is_object()) {
    for (const auto& property : properties->items()) {
      const std::string& key = property.key();
      const auto found = std::ranges::find(required, key);
      const bool is_required = found != required.end();
      if (CanBeParameter(tags, key)) frames.push_back(FrameParameter(tags, key, is_required));
      if (is_required) required.erase(found);
    }
  }
  for (const std::string& key : required) frames.push_back(FrameParameter(tags, key, true));
  return absl::OkStatus();
}

// A harmony call whose recipient stands behind the role, as its template writes it. Without the blank
// in front, which may be a part of a token.
std::string RecipientPrefix(std::string_view name) {
  return "to=functions." + std::string(name) + "<|channel|>commentary <|constrain|>json<|message|>";
}

std::vector<MaskStart> HarmonyStarts(bool has_recipients) {
  constexpr std::string_view kChannel = "<|channel|>commentary to=functions.", kRecipient = "to=functions.";
  std::vector<MaskStart> starts = {{std::string(kChannel), false, kChannel.size()}};
  if (!has_recipients) return starts;
  starts.push_back({"<|start|>assistant " + std::string(kRecipient), false, kRecipient.size()});
  starts.push_back({std::string(kRecipient), true, kRecipient.size()});
  return starts;
}

std::vector<MaskStart> StartsOf(const ToolFormat& format, bool forces) {
  switch (format.syntax) {
    case ToolSyntax::kHarmony:
      return HarmonyStarts(!forces);
    case ToolSyntax::kMistral:
      return {{"[TOOL_CALLS]", false, std::string_view("[TOOL_CALLS]").size()}};
    case ToolSyntax::kLlama3:
      return {{"<|python_tag|>", true, 0}, {"{\"name\": \"", true, std::string_view("{\"name\": \"").size()}};
    case ToolSyntax::kMiniMax:
      return {{"<minimax:tool_call>", false, std::string_view("<minimax:tool_call>").size()}};
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
  const bool is_harmony = format.syntax == ToolSyntax::kHarmony;
  frames.one_call = !request.parallel || only != nullptr || format.syntax == ToolSyntax::kLlama3 || is_harmony;
  frames.starts = StartsOf(format, request.choice.Forces());
  for (const ToolFunction& function : request.functions) {
    if (only != nullptr && function.name != *only) continue;
    CallFrame frame;
    frame.function = &function;
    frame.prefix = CallPrefix(format, function.name);
    frame.by_parameter = ParameterTagsOf(format.syntax) != nullptr;
    if (frame.by_parameter) LIME_RETURN_IF_ERROR(FrameParameters(function, format.syntax, frame.parameters));
    frame.suffix = CallSuffix(format);
    frames.alternatives.push_back(std::move(frame));
    if (!is_harmony || request.choice.Forces()) continue;
    frames.alternatives.push_back({.function = &function, .prefix = RecipientPrefix(function.name)});
  }
  return frames;
}

}  // namespace lime
