// Chooses the next id from a row of logits: a pure function of the logits, the parameters, the ids so far and
// (seed, request, position). The same bits in give the same id on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/softmax.h"
#include "planner/base/status.h"

namespace lime {

// Applied in this order, with the meaning Hugging Face's generate() gives them.
struct SamplingParams {
  double repetition_penalty = 1.0;  // > 0; logits of ids seen before are divided by it where positive, else multiplied
  double temperature = 0.0;         // >= 0; 0 takes the largest logit, the lowest id among equals
  int32_t top_k = 0;                // >= 0; keeps the k largest logits and their equals; 0 keeps all
  double top_p = 1.0;               // in (0, 1]; keeps the fewest most probable ids that together reach it
  double min_p = 0.0;               // in [0, 1]; keeps ids at least this times as probable as the most probable
  uint64_t seed = 0;
};

absl::Status ValidateSamplingParams(const SamplingParams& params);

// How many of the largest logits, with those equal to the least of them, a token depends on: others may be -infinity, and no bit of the
// answer changes.
inline constexpr int64_t kAllLogits = INT64_MAX;
int64_t LogitsUsed(const SamplingParams& params);

// What makes a draw its own.
struct SamplePoint {
  uint64_t request = 0;
  uint64_t position = 0;
};

// The largest logit's id, the lowest among equals. An error for NaN, +infinity, or nothing above -infinity.
absl::StatusOr<int32_t> ArgMax(std::span<const float> logits);

// Owner: one thread. Keeps its buffers: allocates nothing once it has seen the vocabulary.
class Sampler {
 public:
  // `context`: the ids so far, prompt included; only the repetition penalty looks at it. REQUIRES: valid params.
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

  std::vector<float> logits_;   // scaled; -infinity where filtered out
  std::vector<int32_t> order_;  // ids, the most probable first as far as they had to be sorted
  std::vector<uint32_t> seen_;  // by id: the call that met it last
  uint32_t call_ = 0;
  std::vector<RangeSum> ranges_;
};

}  // namespace lime
