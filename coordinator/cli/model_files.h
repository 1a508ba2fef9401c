// The small files of a model: config, tokenizer, end tokens, chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/jinja/model_template.h"
#include "coordinator/text/tokenizer.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime::cli {

struct ModelFiles {
  ModelSpec spec;
  std::unique_ptr<Tokenizer> tokenizer;  // null if no text is read or written
  std::vector<int32_t> end_tokens;       // generation_config.json, config.json or tokenizer

  // `dir`: a checkpoint folder.
  static absl::StatusOr<ModelFiles> Open(const std::string& dir, bool with_text = true);

  // Ids of a prompt, with BOS in front if the tokenizer asks for it. An empty prompt is BOS alone.
  absl::StatusOr<std::vector<int32_t>> EncodePrompt(std::string_view text) const;
  std::optional<int32_t> bos() const;
};

// A file of a model's folder. Nothing if there is no such file.
absl::StatusOr<std::optional<std::string>> ReadOptional(const std::string& path, Bytes limit);

// The chat template of a model's folder: that of chat_template.jinja, or else of
// tokenizer_config.json. It may have none.
absl::StatusOr<ModelTemplate> ReadModelTemplate(const std::string& dir);

// Checks that the weights of `dir` make its model. Says on stderr which unused tensors may affect
// the result.
absl::Status CheckWeights(const std::string& dir);

}  // namespace lime::cli
