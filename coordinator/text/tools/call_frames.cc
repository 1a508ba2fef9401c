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

// On another channel than commentary.
std::string ChannelRecipientPrefix(std::string_view name) {
  return "to=functions." + std::string(name) + " <|constrain|>json<|message|>";
}

// `typed`: "type" stands in front of the name.
std::string Llama3Prefix(bool typed, std::string_view name) {
  return (typed ? "{\"type\": \"function\", \"name\": \"" : "{\"name\": \"") + std::string(name);
}

// A start whose whole text is the frame's.
MaskStart Framed(std::string text) {
  const size_t bytes = text.size();
  return {.text = std::move(text), .frame_bytes = bytes};
}

MaskStart BeginningOfJson(std::string text) {
  MaskStart start = Framed(std::move(text));
  start.at_start = start.any_blanks = true;
  return start;
}

std::vector<MaskStart> HarmonyStarts(bool has_recipients) {
  constexpr std::string_view kRecipient = "to=functions.";
  std::vector<MaskStart> starts = {Framed("<|channel|>commentary to=functions.")};
  if (!has_recipients) return starts;
  for (const char* before : {"<|start|>assistant ", "<|channel|>analysis ", "<|channel|>final "}) {
    starts.push_back({.text = before + std::string(kRecipient), .frame_bytes = kRecipient.size()});
  }
  starts.push_back({.text = std::string(kRecipient), .at_start = true, .frame_bytes = kRecipient.size()});
  return starts;
}

std::vector<MaskStart> StartsOf(const ToolFormat& format, bool forces) {
  switch (format.syntax) {
    case ToolSyntax::kHarmony:
      return HarmonyStarts(!forces);
    case ToolSyntax::kMistral:
      return {Framed("[TOOL_CALLS]")};
    case ToolSyntax::kLlama3: {
      std::vector<MaskStart> starts = {{.text = "<|python_tag|>", .at_start = true}, BeginningOfJson(Llama3Prefix(false, ""))};
      if (!forces) starts.push_back(BeginningOfJson(Llama3Prefix(true, "")));
      return starts;
    }
    default:
      break;
  }
  const ParameterTags* const tags = ParameterTagsOf(format.syntax);
  std::vector<MaskStart> starts = {Framed(tags == nullptr ? "<tool_call>" : std::string(tags->outer))};
  if (tags != nullptr && !tags->name.empty() && !forces) starts.push_back(Framed(std::string(tags->name)));
  return starts;
}

// What a call may begin with beside the prefix of its syntax, where the model itself begins it.
void AddSpellings(const ToolFormat& format, const ToolFunction& function, std::vector<CallFrame>& alternatives) {
  if (format.syntax == ToolSyntax::kHarmony) {
    alternatives.push_back({.function = &function, .prefix = RecipientPrefix(function.name)});
    alternatives.push_back({.function = &function, .prefix = ChannelRecipientPrefix(function.name)});
  }
  if (format.syntax == ToolSyntax::kLlama3) {
    CallFrame typed = {.function = &function, .prefix = Llama3Prefix(true, function.name) + "\", \"parameters\": "};
    typed.suffix = CallSuffix(format);
    alternatives.push_back(std::move(typed));
  }
}

// The outer tags of a call may be missing, as the parser has it. Those of several calls are
// CallFrames::opening and closing.
void LoosenOuterTags(const ToolFormat& format, CallFrame& frame) {
  const ParameterTags* const tags = ParameterTagsOf(format.syntax);
  if (tags == nullptr || tags->outer_end.empty()) return;
  if (const size_t name = frame.prefix.find(tags->name); frame.prefix.starts_with(tags->outer) && name != std::string::npos) {
    frame.outer_prefix = frame.prefix.substr(0, name);
    frame.prefix.erase(0, name);
  }
  if (const size_t end = tags->function_end.size(); frame.suffix.ends_with(tags->outer_end)) {
    frame.outer_suffix = frame.suffix.substr(end);
    frame.suffix.resize(end);
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
  frames.ends_may_lack = !request.choice.Forces() && format.syntax == ToolSyntax::kMiniMax;
  frames.starts = StartsOf(format, request.choice.Forces());
  for (const ToolFunction& function : request.functions) {
    if (only != nullptr && function.name != *only) continue;
    CallFrame frame;
    frame.function = &function;
    frame.prefix = CallPrefix(format, function.name);
    frame.by_parameter = ParameterTagsOf(format.syntax) != nullptr;
    if (frame.by_parameter) LIME_RETURN_IF_ERROR(FrameParameters(function, format.syntax, frame.parameters));
    frame.suffix = CallSuffix(format);
    if (!request.choice.Forces()) LoosenOuterTags(format, frame);
    frames.alternatives.push_back(std::move(frame));
    if (!request.choice.Forces()) AddSpellings(format, function, frames.alternatives);
  }
  return frames;
}

}  // namespace lime
