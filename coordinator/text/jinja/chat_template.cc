#include "coordinator/text/jinja/chat_template.h"

#include "coordinator/text/jinja/builtins/globals.h"
#include "coordinator/text/jinja/interpreter.h"
#include "coordinator/text/jinja/syntax/parser.h"
#include "coordinator/text/jinja/values/from_json.h"
#include "nlohmann/json.hpp"

namespace lime {

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  LIME_ASSIGN_OR_RETURN(auto syntax, jinja::Parse(source));
  return ChatTemplate(std::move(syntax));
}

absl::StatusOr<std::string> ChatTemplate::Render(const nlohmann::ordered_json& variables, absl::CivilSecond now) const {
  if (!variables.is_object()) return Invalid("the variables of a chat template are ", variables.type_name(), "; give an object");
  jinja::Rendering rendering(now);
  jinja::Interpreter interpreter(*syntax_, rendering);
  for (size_t id = 0; id < syntax_->names.size(); ++id) {  // only what the template reads
    const std::string& name = syntax_->names[id];
    const auto given = variables.find(name);
    const auto value = given != variables.end() ? jinja::FromJson(rendering, *given) : jinja::FindGlobal(rendering, name);
    if (value.has_value()) interpreter.SetGlobal(static_cast<jinja::NameId>(id), *value);
  }
  std::string text = interpreter.Run();
  if (rendering.failed()) return rendering.status();
  return text;
}

}  // namespace lime
