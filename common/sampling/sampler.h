// Chooses the next id from a row of logits. A pure function of the logits, the parameters, the ids
// so far and (seed, request, position): equal bits give the same id on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/sampling/softmax.h"
#include "planner/base/status.h"

namespace lime {

// Applied in this order, with the same meaning as in Hugging Face's generate().
struct SamplingParams {
  // > 0. The logit of an id seen before is divided by it if the logit is positive, else multiplied.
  double repetition_penalty = 1.0;
  double temperature = 0.0;  // >= 0; 0: the largest logit, and the lowest of equal ids
  int32_t top_k = 0;         // >= 0; keeps the k largest logits and equal ones; 0: all
  double top_p = 1.0;        // in (0, 1]; keeps the most probable ids, only as many as together reach it
  // In [0, 1]. Keeps ids with at least this fraction of the largest probability.
  double min_p = 0.0;
  uint64_t seed = 0;
};

absl::Status ValidateSamplingParams(const SamplingParams& params);

// The number of largest logits (and equal ones) that a token depends on. All others may be
// -infinity without changing a bit of the result.
inline constexpr int64_t kAllLogits = INT64_MAX;
int64_t LogitsUsed(const SamplingParams& params);

// Identifies a draw.
struct SamplePoint {
  uint64_t request = 0;
  uint64_t position = 0;
};

// The id of the largest logit, and the lowest of equal ids. An error for NaN, +infinity, or if all
// are -infinity.
absl::StatusOr<int32_t> ArgMax(std::span<const float> logits);

// Owner: one thread. Reuses its buffers: allocates nothing after it has seen the vocabulary size.
class Sampler {
 public:
  // `context`: the ids so far with the prompt, for the repetition penalty. REQUIRES: valid params.
  absl::StatusOr<int32_t> Sample(std::span<const float> logits, const SamplingParams& params, std::span<const int32_t> context,
                                 const SamplePoint& point);

 private:
  void Penalise(double penalty, std::span<const int32_t> context);
  void KeepTopK(int32_t k);
  void KeepTopP(double p);
  void KeepMinP(double p);
  void SortFront(size_t sorted, size_t count);
  void Divide(double temperature);
  int32_t Draw(double uniform);
  std::span<const float> Range(size_t begin) const;

  std::vector<float> logits_;   // scaled; -infinity if filtered out
  std::vector<int32_t> order_;  // ids; sorted by probability as far as needed
  std::vector<uint32_t> seen_;  // by id: the last call that met it
  uint32_t call_ = 0;
  std::vector<RangeSum> ranges_;
};

}  // namespace lime
