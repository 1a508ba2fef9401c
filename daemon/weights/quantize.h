// Turns a dense checkpoint into an MLX-style affine one: fewer bytes per weight, read by LIME and by MLX alike.
#pragma once

#include <string>
#include <vector>

#include "daemon/weights/loader.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model_config.h"

namespace lime {

struct QuantizeReport {
  Bytes source_bytes = 0;          // of all tensors
  Bytes bytes = 0;                 // of all tensors written
  int quantized = 0;               // matrices
  std::vector<std::string> dense;  // matrices left as they were: their columns are no multiple of the group size
};

// Writes into `target_dir`, which is made where it is missing, the checkpoint of `source_dir` with every linear layer, the embedding and an
// untied head packed; norms, biases and learned positions are copied, as are the tokenizer and other small files. Scales and biases have
// the source's dtype. Uses all cores. `options.progress` is called by one working thread at a time. config.json is written last, so that an
// interrupted folder is no checkpoint.
absl::StatusOr<QuantizeReport> QuantizeCheckpoint(const std::string& source_dir, const std::string& target_dir, const Quantization& packing,
                                                  const LoadOptions& options = {});

}  // namespace lime
