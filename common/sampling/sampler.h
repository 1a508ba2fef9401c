// Chooses the next id from a row of logits. A pure function of the logits, the parameters, the ids
// so far and (seed, request, position): equal bits give the same id on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/sampling/softmax.h"
#include "planner/base/status.h"

namespace lime {

// Added to the logit of an id. kForbids or less: the id is not sampled.
struct LogitBias {
  static constexpr float kForbids = -100;

  int32_t id = 0;
  float bias = 0;

  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

// Applied in this order, with the same meaning as in Hugging Face's generate(); penalties for
// presence and frequency, and biases, as in OpenAI's API. A mask (SampleContext) follows the
// biases.
struct SamplingParams {
  static constexpr size_t kMaxBiases = 1024;

  // > 0. The logit of an id seen before, in the prompt or generated, is divided by it if the logit
  // is positive, else multiplied.
  double repetition_penalty = 1.0;
  // -2 to 2. Of generated ids alone: subtracted once from the logit of an id that has come, and
  // once for each time that it has come.
  double presence_penalty = 0.0, frequency_penalty = 0.0;
  std::vector<LogitBias> logit_bias;  // at most kMaxBiases; several of one id add up
  double temperature = 0.0;           // >= 0; 0: the largest logit, and the lowest of equal ids
  int32_t top_k = 0;                  // >= 0; keeps the k largest logits and equal ones; 0: all
  double top_p = 1.0;                 // in (0, 1]; keeps the most probable ids, only as many as together reach it
  // In [0, 1]. Keeps ids with at least this fraction of the largest probability.
  double min_p = 0.0;
  uint64_t seed = 0;

  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

absl::Status ValidateSamplingParams(const SamplingParams& params);

// The number of largest logits (and equal ones) that a token depends on. All others may be
// -infinity without changing a bit of the result. A token with a mask depends on all of them.
inline constexpr int64_t kAllLogits = INT64_MAX;
int64_t LogitsUsed(const SamplingParams& params);

// What a token depends on besides its logits, the parameters and the draw.
struct SampleContext {
  std::span<const int32_t> ids;  // so far, with the prompt; for the penalties
  size_t generated = 0;          // the last ones of `ids`: all but the prompt
  // Bit id % 64 of word id / 64: the id may come next. Empty: every id may. Ids beyond the last
  // word may not. If it has no id of the vocabulary, it is ignored.
  std::span<const uint64_t> mask;
};

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
  // A mask wins over biases: if they forbid all its ids, the biases are ignored.
  // REQUIRES: valid params.
  absl::StatusOr<int32_t> Sample(std::span<const float> logits, const SamplingParams& params, const SampleContext& context,
                                 const SamplePoint& point);

 private:
  bool Has(int32_t id) const;
  void Penalise(double penalty, std::span<const int32_t> ids);
  void PenaliseGenerated(const SamplingParams& params, const SampleContext& context);
  void Bias(std::span<const LogitBias> biases);
  void UndoBias();
  bool HasPossible(std::span<const uint64_t> mask) const;
  void KeepAllowed(std::span<const uint64_t> mask);
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
  std::vector<int32_t> counts_;                         // by id: times that it has come; 0 between calls
  std::vector<std::pair<int32_t, float>> before_bias_;  // ids with a bias, and their logits before it
  std::vector<RangeSum> ranges_;
};

}  // namespace lime
