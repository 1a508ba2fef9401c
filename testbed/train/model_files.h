// Reads and writes the model folder in Hugging Face's layout, and the checkpoint from which
// training resumes.
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
// tokenizer_config.json, generation_config.json; with the tokens of the chat template also
// chat_template.jinja, and an answer ends at kMessageEnd.
absl::Status WriteModelFolder(const std::string& folder, const Llama& model, const ByteBpe& tokenizer);

// Reads a folder that WriteModelFolder wrote, with weights widened to fp32. It trusts these files,
// so it must not read other checkpoints.
absl::StatusOr<ModelFolder> ReadModelFolder(const std::string& folder);

// Writes weights in fp32, optimizer state and the number of steps done. Writes beside `path` and
// renames, so that the file is whole or absent.
absl::Status WriteCheckpoint(const std::string& path, const Llama& model, const torch::optim::Optimizer& optimizer, int64_t steps);
// Fills `model` and `optimizer`; returns the number of steps done.
absl::StatusOr<int64_t> ReadCheckpoint(const std::string& path, Llama& model, torch::optim::Optimizer& optimizer);

absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::Status WriteFile(const std::string& path, absl::string_view text);

}  // namespace lime::train
