#include "coordinator/text/tools/call_text.h"

#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"

namespace lime {
namespace {

using Json = nlohmann::ordered_json;

std::string AsText(const Json& value) {
  return value.is_string() ? value.get<std::string>() : JsonText(value);
}

std::string ArgumentsAsText(const ToolFormat& format, const Json& arguments) {
  const ParameterTags* const tags = ParameterTagsOf(format.syntax);
  if (tags == nullptr) return AsText(arguments);
  if (!arguments.is_object()) return AsText(arguments) + "\n";
  std::string text;
  for (const auto& [key, value] : arguments.items()) text += ParameterPrefix(*tags, key) + AsText(value) + ParameterSuffix(*tags);
  return text;
}

constexpr ParameterTags kQwen3CoderTags = {.outer = "<tool_call>",
                                           .name = "<function=",
                                           .name_end = ">",
                                           .key = "<parameter=",
                                           .key_end = ">",
                                           .value_end = "</parameter>",
                                           .function_end = "</function>",
                                           .outer_end = "</tool_call>",
                                           .has_lines = true};
constexpr ParameterTags kGlmTags = {.outer = "<tool_call>",
                                    .key = "<arg_key>",
                                    .key_end = "</arg_key>",
                                    .value = "<arg_value>",
                                    .value_end = "</arg_value>",
                                    .function_end = "</tool_call>"};
constexpr ParameterTags kMiniMaxTags = {.outer = "<minimax:tool_call>",
                                        .name = "<invoke name=\"",
                                        .name_end = "\">",
                                        .key = "<parameter name=\"",
                                        .key_end = "\">",
                                        .value_end = "</parameter>",
                                        .function_end = "</invoke>",
                                        .outer_end = "</minimax:tool_call>"};

}  // namespace

CallsText CallsTextOf(const ToolFormat& format) {
  switch (format.syntax) {
    case ToolSyntax::kMistral:
      return format.args_marker ? CallsText{} : CallsText{"[TOOL_CALLS][", ", ", "]"};
    case ToolSyntax::kLlama3:
    case ToolSyntax::kHarmony:
      return {};
    case ToolSyntax::kMiniMax:
      return {"<minimax:tool_call>\n", "\n", "\n</minimax:tool_call>"};
    default:
      return {"", "\n", ""};
  }
}

std::string CallPrefix(const ToolFormat& format, std::string_view name) {
  const std::string text(name);
  const std::string object = "{\"name\": \"" + text + "\", ";
  switch (format.syntax) {
    case ToolSyntax::kQwen3Coder:
      return "<tool_call>\n<function=" + text + ">\n";
    case ToolSyntax::kLlama3:
      return object + "\"parameters\": ";
    case ToolSyntax::kMistral:
      return format.args_marker ? "[TOOL_CALLS]" + text + "[ARGS]" : object + "\"arguments\": ";
    case ToolSyntax::kGlm:
      return "<tool_call>" + text + "\n";
    case ToolSyntax::kMiniMax:
      return "<invoke name=\"" + text + "\">\n";
    case ToolSyntax::kHarmony:
      return "<|channel|>commentary to=functions." + text + " <|constrain|>json<|message|>";
    case ToolSyntax::kHermes:
      break;
  }
  return "<tool_call>\n" + object + "\"arguments\": ";
}

std::string_view CallSuffix(const ToolFormat& format) {
  switch (format.syntax) {
    case ToolSyntax::kQwen3Coder:
      return "</function>\n</tool_call>";
    case ToolSyntax::kLlama3:
      return "}";
    case ToolSyntax::kMistral:
      return format.args_marker ? "" : "}";
    case ToolSyntax::kGlm:
      return "</tool_call>";
    case ToolSyntax::kMiniMax:
      return "</invoke>";
    case ToolSyntax::kHarmony:  // <|call|> ends the answer
      return "";
    case ToolSyntax::kHermes:
      break;
  }
  return "}\n</tool_call>";
}

const ParameterTags* ParameterTagsOf(ToolSyntax syntax) {
  switch (syntax) {
    case ToolSyntax::kQwen3Coder:
      return &kQwen3CoderTags;
    case ToolSyntax::kGlm:
      return &kGlmTags;
    case ToolSyntax::kMiniMax:
      return &kMiniMaxTags;
    default:
      return nullptr;
  }
}

std::string ParameterPrefix(const ParameterTags& tags, std::string_view key) {
  std::string text(tags.key);
  text += key;
  text += tags.key_end;
  if (tags.has_lines || !tags.value.empty()) text += '\n';
  text += tags.value;
  return text;
}

std::string ParameterSuffix(const ParameterTags& tags) {
  std::string text = tags.has_lines ? "\n" : "";
  text += tags.value_end;
  text += '\n';
  return text;
}

bool CanBeParameter(const ParameterTags& tags, std::string_view key) {
  return !key.empty() && key.size() <= kMaxParameterKey && key.find_first_of("\n<>") == std::string_view::npos &&
         key.find(tags.key_end[0]) == std::string_view::npos;
}

std::string CallsAsText(const ToolFormat& format, const Json& tool_calls) {
  const CallsText around = CallsTextOf(format);
  std::string text;
  for (const Json& call : tool_calls) {
    const auto function = call.is_object() ? call.find("function") : call.end();
    if (!call.is_object() || function == call.end() || !function->is_object()) continue;
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string()) continue;
    const auto arguments = function->find("arguments");
    text += text.empty() ? around.opening : around.separator;
    text += CallPrefix(format, name->get<std::string>());
    text += ArgumentsAsText(format, arguments != function->end() ? *arguments : Json::object());
    text += CallSuffix(format);
  }
  if (!text.empty()) text += around.closing;
  return text;
}

}  // namespace lime
