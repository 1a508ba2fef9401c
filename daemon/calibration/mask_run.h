// Runs a model over sequences of tokens, and tells which neurons of its MLPs are active.
//
// One layer at a time is in memory: all tokens pass it before the next layer is loaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "daemon/weights/checkpoint.h"
#include "planner/base/status.h"
#include "planner/demand/calibration.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// Tokens times neurons of a layer: its masks take at most 4 bytes for each, if all neurons are active.
inline constexpr int64_t kMostMaskNeurons = int64_t{1} << 30;

struct MaskRunOptions {
  int num_threads = 1;
  std::string numerics = "auto";
  // The share of the work that is done, from 0 to 1. May be null.
  std::function<void(double)> progress;
  // Any thread may set it to stop the run, which then returns kCancelled. May be null.
  const std::atomic<bool>* cancelled = nullptr;
};

// Takes the masks of a layer: by sequence and token, the active neurons, ascending. An error ends the
// run.
using TakeMasks = std::function<absl::Status(int32_t layer, int32_t neurons, std::span<const SequenceMasks> masks)>;

// Calls `take` for each layer whose MLP may be sparse, ascending. InvalidArgument if there is none, for
// ids that the model does not have, for an empty sequence or one longer than its positions, and for
// more tokens than kMostMaskNeurons allows. ResourceExhausted if memory is missing.
// REQUIRES: `spec` was built from `checkpoint`.
absl::Status RunForMasks(const Checkpoint& checkpoint, const ModelSpec& spec, std::span<const std::vector<int32_t>> sequences,
                         const MaskRunOptions& options, const TakeMasks& take);

}  // namespace lime
