// Turns a dense checkpoint into an affine one as MLX does it: fewer bytes per weight. Both LIME and
// MLX read the result.
#pragma once

#include <string>
#include <vector>

#include "daemon/weights/loader.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_config.h"

namespace lime {

struct QuantizeReport {
  Bytes source_bytes = 0;  // of all tensors
  Bytes bytes = 0;         // of all written tensors
  int quantized = 0;       // number of matrices
  // Matrices that stay dense, because their columns are no multiple of the group size.
  std::vector<std::string> dense;
};

struct QuantizeOptions {
  LoadOptions watch;  // `progress` is called by one working thread at a time
  // Replace files of the same names that LIME did not write. Weights are never replaced.
  bool overwrite = false;
};

// Writes a quantised copy of the checkpoint in `source_dir` into `target_dir`. Packs every linear
// layer but routers, the embedding and an untied head. Copies routers, norms, biases, learned positions, the tokenizer
// and the other side files of a model. Scales and biases have the source's dtype. Uses all cores.
//
// The folder may be missing, empty, or an earlier copy of the same model; otherwise
// InvalidArgument. All files get their names at the end. Until then nothing is changed: an error or
// the end of the process leaves the folder as it was.
absl::StatusOr<QuantizeReport> QuantizeCheckpoint(const std::string& source_dir, const std::string& target_dir, const Quantization& packing,
                                                  const QuantizeOptions& options = {});

}  // namespace lime
