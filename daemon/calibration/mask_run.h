// Runs a model over sequences of tokens, and tells which neurons of its MLPs are active.
//
// One layer at a time is in memory: all tokens pass it before the next layer is loaded.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/proven_zeros/sum_order.h"
#include "daemon/weights/checkpoint.h"
#include "planner/base/status.h"
#include "planner/demand/calibration.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// Tokens times neurons of a layer: its masks take at most 4 bytes for each, if all neurons are active.
inline constexpr int64_t kMostMaskNeurons = int64_t{1} << 30;

// What a copy of a layer's decider, or its predictor, is made of and measured with (proven_shares.h,
// predictor_trial.h). Of a long text, and of a layer with many weights, these may be samples.
struct LayerInputs {
  int32_t layer = 0;
  int64_t cols = 0;
  std::vector<int32_t> neurons;             // that are sampled, ascending
  std::vector<float> decider;               // [neurons, cols]: their weights
  std::vector<float> bias;                  // [neurons], or empty
  std::vector<float> inputs;                // [tokens, cols]: of the decider, in the order of the text
  std::vector<std::vector<int32_t>> masks;  // by token: active neurons, ascending
  // In which the decider is computed; nothing if it has no proof.
  std::optional<SumOrder> order = SumOrder::kPortable;
  float threshold = 0;  // outputs of the decider up to it are zeros
  // Of the run, for the work with the inputs. Once `cancelled` is set, whoever works returns kCancelled
  // soon. Null: nothing cancels, or nobody wants the share of the work that is done.
  int num_threads = 1;
  const std::atomic<bool>* cancelled = nullptr;
  std::function<void(double)> progress;
  bool IsCancelled() const { return cancelled != nullptr && cancelled->load(std::memory_order_relaxed); }

  // What follows is whole: all neurons, and every token from MaskRunOptions::last_from on, at most kMostLastInputs.
  int32_t all_neurons = 0;
  std::vector<float> all_bias;  // [all_neurons], or empty
  // Writes the weights of a neuron, [cols]. Valid until take_inputs returns.  Thread: any
  std::function<void(int64_t neuron, std::span<float> weights)> row;
  std::vector<float> last_inputs;         // [tokens, cols]
  std::vector<SequenceMasks> last_masks;  // by sequence, as the tokens follow each other
};
// Fewer of them: every so many-th token and neuron.
LayerInputs Sampled(const LayerInputs& inputs, int64_t most_inputs, int64_t most_weights);
inline constexpr int64_t kMostSampledInputs = 2048, kMostSampledWeights = 1 << 22, kMostLastInputs = 2048;
// Of so many sampled tokens, those that teach; the others are measured.
constexpr int64_t TaughtInputs(int64_t sampled) {
  return sampled * 3 / 4;
}

struct MaskRunOptions {
  int num_threads = 1;
  std::string numerics = "auto";
  // The share of the work that is done, from 0 to 1. May be null.
  std::function<void(double)> progress;
  // Called for each layer before its masks are taken, but not for layers whose decider is packed or has a
  // weight that is not finite. Has at most so many tokens and weights. An error ends the run. May be null.
  int64_t most_inputs = kMostSampledInputs, most_weights = kMostSampledWeights;
  std::function<absl::Status(const LayerInputs&)> take_inputs;
  // LayerInputs::last_inputs begin with this token of the text; -1: behind those that teach a frame.
  int64_t last_from = -1;
  // Any thread may set it to stop the run, which then returns kCancelled. May be null.
  const std::atomic<bool>* cancelled = nullptr;
  // Takes what the MLP half of a layer gets for rows [first, first + rows) of a sequence, before
  // its norm: [rows, hidden] in the working dtype, plane after plane. Called before TakeMasks of
  // the layer. May be null.
  std::function<void(int32_t layer, size_t sequence, int64_t first, int64_t rows, std::span<const std::byte> stream)> inputs = nullptr;
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
