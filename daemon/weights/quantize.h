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

struct QuantizeOptions {
  LoadOptions watch;       // `progress` is called by one working thread at a time
  bool overwrite = false;  // files of the same names that somebody else wrote; never weights
};

// Writes into `target_dir`, which is made where it is missing, the checkpoint of `source_dir` with every linear layer, the embedding and an
// untied head packed; norms, biases and learned positions are copied, as are the tokenizer and the other small files that a model needs.
// Scales and biases have the source's dtype. Uses all cores.
//
// The folder may be missing, empty, or an earlier copy of the same model; InvalidArgument where it holds anything else. All files take
// their names at the end: until then nothing is changed, and an error or the end of the process leaves the folder as it was.
absl::StatusOr<QuantizeReport> QuantizeCheckpoint(const std::string& source_dir, const std::string& target_dir, const Quantization& packing,
                                                  const QuantizeOptions& options = {});

}  // namespace lime
