// Finds the language model in a config.json, and its family.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/base/strings.h"
#include "planner/plan/model/config_parts.h"

namespace lime::config {
namespace {

using nlohmann::json;

bool Stated(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

// Ignores case: older converters write LLaMAForCausalLM.
bool Names(std::span<const std::string_view> known, std::string_view spelled) {
  return std::ranges::any_of(known, [&](std::string_view name) { return absl::EqualsIgnoreCase(Text(name), Text(spelled)); });
}

Architecture FindName(std::string_view spelled) {
  for (const Family* const family : Families()) {
    for (const std::string_view name : family->architectures) {
      if (absl::EqualsIgnoreCase(Text(name), Text(spelled))) return {family, name};
    }
  }
  return {};
}

const Family* FindModelType(std::string_view spelled) {
  for (const Family* const family : Families()) {
    if (Names(family->model_types, spelled)) return family;
  }
  return nullptr;
}

// "LlamaForCausalLM, ... and OPTForCausalLM are supported".
std::string SupportedArchitectures() {
  std::vector<std::string> names;
  for (const Family* const family : Families()) names.emplace_back(family->architectures.front());
  const std::string last = std::move(names.back());
  names.pop_back();
  return absl::StrCat(absl::StrJoin(names, ", "), " and ", last, " are supported");
}

}  // namespace

absl::StatusOr<json> TextConfig(json root, std::string& name) {
  if (!Stated(root, "text_config")) return root;
  json text = root.at("text_config");
  if (!text.is_object()) return Invalid(name, ": field \"text_config\" is not an object");
  // The class of the whole model says nothing more if the language model's type is stated.
  if (Stated(text, "model_type"))
    text.erase("architectures");
  else if (Stated(root, "architectures"))
    text["architectures"] = root.at("architectures");
  for (const char* key : {"model_type", "tie_word_embeddings", "quantization", "quantization_config", "bos_token_id", "eos_token_id",
                          "dtype", "torch_dtype"}) {
    if (!Stated(text, key) && Stated(root, key)) text[key] = root.at(key);
  }
  absl::StrAppend(&name, ": text_config");
  return text;
}

// As in transformers, model_type decides if it is stated, and must name a known family. Else the
// first known name in "architectures" decides. A list without a known name is an error.
absl::StatusOr<Architecture> FindArchitecture(const json& text, std::string_view name) {
  const auto list = text.find("architectures");
  const bool lists = list != text.end() && list->is_array() && !list->empty() && list->front().is_string();
  Architecture by_name;
  for (const json& spelled : lists ? *list : json::array()) {
    if (by_name.family == nullptr && spelled.is_string()) by_name = FindName(spelled.get_ref<const std::string&>());
  }
  if (lists && by_name.family == nullptr) {
    return Unsupported(name, absl::StrCat("architecture \"", list->front().get<std::string>().substr(0, 80), "\""),
                       SupportedArchitectures());
  }
  const auto type = text.find("model_type");
  if (type != text.end() && type->is_string() && !type->get_ref<const std::string&>().empty()) {
    const Family* const by_type = FindModelType(type->get_ref<const std::string&>());
    if (by_name.family != nullptr && by_name.family->only_its_types && by_type != by_name.family) {
      return Unsupported(
          name, absl::StrCat("architecture \"", Text(by_name.name), "\" with model_type \"", type->get<std::string>().substr(0, 80), "\""),
          SupportedArchitectures());
    }
    if (by_type != nullptr) return by_type == by_name.family ? by_name : Architecture{by_type, by_type->architectures.front()};
    return Unsupported(name, absl::StrCat("model_type \"", type->get<std::string>().substr(0, 80), "\""), SupportedArchitectures());
  }
  if (by_name.family != nullptr) return by_name;
  return Invalid(Text(name), ": names no architecture; \"architectures\" must hold one, such as [\"LlamaForCausalLM\"]");
}

}  // namespace lime::config
