// Which chat template a model has, from the files of its folder.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "planner/base/status.h"

namespace lime {

struct ModelTemplate {
  std::string source;      // empty: the model has none
  std::string with_tools;  // for requests with tools; empty: the same
  // bos_token, eos_token and the like, which templates read.
  std::vector<std::pair<std::string, std::string>> tokens;

  // Adds what `variables`, an object, lack: tokens, and no tools and documents.
  void Complete(nlohmann::ordered_json& variables) const;
  // The template for these variables.
  const std::string& For(const nlohmann::ordered_json& variables) const;
};

// `file`: chat_template.jinja, which replaces the template of tokenizer_config.json. `config`: that
// file, or null. Errors do not name the folder.
absl::StatusOr<ModelTemplate> FindModelTemplate(std::optional<std::string> file, const nlohmann::json& config);

}  // namespace lime
