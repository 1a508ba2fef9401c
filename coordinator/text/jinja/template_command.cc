#include "coordinator/text/jinja/template_command.h"

#include <istream>
#include <iterator>
#include <ostream>
#include <string>

#include "coordinator/text/jinja/chat_template.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"

namespace lime {
namespace {

using OrderedJson = nlohmann::ordered_json;

absl::StatusOr<absl::CivilSecond> TimeOf(const OrderedJson& request, absl::CivilSecond now) {
  const auto given = request.find("now");
  if (given == request.end()) return now;
  if (!given->is_string() || !absl::ParseCivilTime(given->get_ref<const std::string&>(), &now)) {
    return Invalid("\"now\" is no time; write it as \"2024-07-26T09:30:00\"");
  }
  return now;
}

absl::StatusOr<std::string> Render(const ModelTemplate& model, absl::CivilSecond now, const std::string& text, std::string_view name) {
  LIME_ASSIGN_OR_RETURN(OrderedJson request, ParseOrderedJsonObject(text, name));
  LIME_ASSIGN_OR_RETURN(const absl::CivilSecond time, TimeOf(request, now));
  if (!request.contains("vars") && request.contains("messages"))
    return Invalid("\"messages\" stands outside \"vars\"; write {\"vars\": {\"messages\": [...]}}");
  OrderedJson& variables = request["vars"];
  if (variables.is_null()) variables = OrderedJson::object();
  if (!variables.is_object()) return Invalid("\"vars\" is ", variables.type_name(), "; give an object");
  std::string source;
  if (const auto given = request.find("template"); given != request.end()) {
    if (!given->is_string()) return Invalid("\"template\" is ", given->type_name(), "; give a string");
    source = given->get<std::string>();
  } else {
    model.Complete(variables);
    source = model.For(variables);
    if (source.empty()) return Invalid("there is no template; give one as \"template\", or --model with a model that has one");
  }
  LIME_ASSIGN_OR_RETURN(const ChatTemplate parsed, ChatTemplate::Parse(source));
  return parsed.Render(variables, time);
}

}  // namespace

absl::Status RunTemplate(const ModelTemplate& model, absl::CivilSecond now, std::istream& in, std::ostream& out,
                         const TemplateOptions& options) {
  if (!options.jsonl) {
    const std::string input(std::istreambuf_iterator<char>(in), {});
    LIME_ASSIGN_OR_RETURN(const std::string text, Render(model, now, input, "stdin"));
    out << (options.json ? JsonText(OrderedJson{{"text", text}}) + "\n" : text);
    return absl::OkStatus();
  }
  for (std::string line; std::getline(in, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto text = Render(model, now, line, "the line");
    out << JsonText(text.ok() ? OrderedJson{{"text", *text}} : OrderedJson{{"error", std::string(text.status().message())}}) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace lime
