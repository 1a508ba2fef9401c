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
  if (format.syntax != ToolSyntax::kQwen3Coder) return AsText(arguments);
  if (!arguments.is_object()) return AsText(arguments) + "\n";
  std::string text;
  for (const auto& [key, value] : arguments.items()) {
    text += ParameterPrefix(key) + AsText(value);
    text += kParameterSuffix;
  }
  return text;
}

}  // namespace

CallsText CallsTextOf(const ToolFormat& format) {
  switch (format.syntax) {
    case ToolSyntax::kMistral:
      return format.args_marker ? CallsText{} : CallsText{"[TOOL_CALLS][", ", ", "]"};
    case ToolSyntax::kLlama3:
      return {};
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
    case ToolSyntax::kHermes:
      break;
  }
  return "}\n</tool_call>";
}

std::string ParameterPrefix(std::string_view key) {
  return "<parameter=" + std::string(key) + ">\n";
}

bool CanBeParameter(std::string_view key) {
  return !key.empty() && key.size() <= kMaxParameterKey && key.find_first_of("\n<>") == std::string_view::npos;
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
