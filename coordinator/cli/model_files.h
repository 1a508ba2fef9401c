// The small files of a model that commands compute with: its config, its tokenizer, its end tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/tokenizer.h"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"

namespace lime::cli {

struct ModelFiles {
  ModelSpec spec;
  std::unique_ptr<Tokenizer> tokenizer;  // null where no text is read or written
  std::vector<int32_t> end_tokens;       // of generation_config.json, else of config.json, else the tokenizer's

  // Of a checkpoint folder.
  static absl::StatusOr<ModelFiles> Open(const std::string& dir, bool with_text = true);

  // Ids of a prompt, BOS in front as the tokenizer says; an empty prompt is BOS alone.
  absl::StatusOr<std::vector<int32_t>> EncodePrompt(std::string_view text) const;
  std::optional<int32_t> bos() const;
};

// That the weights of `dir` make its model. Says on stderr what of them it does not use although the result may depend on it.
absl::Status CheckWeights(const std::string& dir);

}  // namespace lime::cli
