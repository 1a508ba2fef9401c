#include "coordinator/text/jinja/model_template.h"

#include "nlohmann/json.hpp"

namespace lime {
namespace {

using Json = nlohmann::json;

// A string field; empty for anything else.
std::string TextField(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// One template of a list, by its name; empty if there is none.
std::string Named(const Json& list, const std::string& name) {
  for (const Json& entry : list) {
    if (TextField(entry, "name") == name) return TextField(entry, "template");
  }
  return "";
}

// A token is a string, or an object with its content.
std::string TokenOf(const Json& config, const char* key) {
  const auto found = config.is_object() ? config.find(key) : config.end();
  return found != config.end() && found->is_object() ? TextField(*found, "content") : TextField(config, key);
}

}  // namespace

void ModelTemplate::Complete(nlohmann::ordered_json& variables) const {
  for (const auto& [name, text] : tokens) {
    if (!variables.contains(name)) variables[name] = text;
  }
  for (const char* name : {"tools", "documents"}) {
    if (!variables.contains(name)) variables[name] = nullptr;
  }
}

const std::string& ModelTemplate::For(const nlohmann::ordered_json& variables) const {
  const auto tools = variables.find("tools");
  const bool has_tools = tools != variables.end() && !tools->is_null();
  return has_tools && !with_tools.empty() ? with_tools : source;
}

absl::StatusOr<ModelTemplate> FindModelTemplate(std::optional<std::string> file, const Json& config) {
  ModelTemplate found;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (std::string token = TokenOf(config, name); !token.empty()) found.tokens.emplace_back(name, std::move(token));
  }
  if (file.has_value()) {
    found.source = *std::move(file);
    return found;
  }
  const auto given = config.is_object() ? config.find("chat_template") : config.end();
  if (given == config.end() || given->is_null()) return found;
  if (given->is_array()) {
    found.source = Named(*given, "default");
    found.with_tools = Named(*given, "tool_use");
    if (found.source.empty()) return Invalid("\"chat_template\" has no template named \"default\"; add one");
    return found;
  }
  if (!given->is_string()) return Invalid("\"chat_template\" is ", given->type_name(), ", need a string or a list of templates");
  found.source = given->get<std::string>();
  return found;
}

}  // namespace lime
