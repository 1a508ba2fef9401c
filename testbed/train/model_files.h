// The model folder as Hugging Face lays it out, and the checkpoint that training resumes from.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "testbed/train/bpe_trainer.h"
#include "testbed/train/llama.h"

namespace torch::optim {
class Optimizer;
}

namespace lime::train {

struct ModelFolder {
  Llama model;
  ByteBpe tokenizer;
};

// config.json, model.safetensors (bf16, rounded to nearest even), tokenizer.json,
// tokenizer_config.json, generation_config.json.
absl::Status WriteModelFolder(const std::string& folder, const Llama& model, const ByteBpe& tokenizer);

// What WriteModelFolder wrote; the weights widened to fp32. It trusts its own files and is no
// reader of foreign checkpoints.
absl::StatusOr<ModelFolder> ReadModelFolder(const std::string& folder);

// Weights in fp32, optimizer state and the number of steps done; written beside `path` and renamed,
// so that it is whole or absent.
absl::Status WriteCheckpoint(const std::string& path, const Llama& model, const torch::optim::Optimizer& optimizer, int64_t steps);
// Fills `model` and `optimizer`; returns the steps done.
absl::StatusOr<int64_t> ReadCheckpoint(const std::string& path, Llama& model, torch::optim::Optimizer& optimizer);

absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::Status WriteFile(const std::string& path, std::string_view text);

}  // namespace lime::train
