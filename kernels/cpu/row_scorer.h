// Evaluates a row of logits: its largest values, and the log-probability of an id.
//
// Thread: one at a time.   Bits: the same on every device; those of a log-probability also depend
// on the C library.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/sampling/row_score.h"

namespace lime::cpu {

// ---- The largest

struct TopEntry {
  float value = 0;
  int32_t id = 0;
};

// Fills `top` with the min(k, n) largest of logits [n], largest first, equal ones by ascending id.
// Returns their number, or -1 if a logit is NaN (only broken weights or a bug cause that).
// Allocates nothing.
int64_t TopK(const float* logits, int64_t n, int64_t k, TopEntry* top);

// ---- Softmax over the vocabulary
//
// Order (portable-f32-1): ranges of 1,024 ids. Within a range, fp32 lane id % 16 adds
// exp(logit - max), ids ascending; then the lanes are added as in ReduceAdd. Ranges are merged in
// double in ascending order, wherever they were computed. Sampling has a softmax of its own, in
// double throughout (common/sampling/softmax.h).

inline constexpr int64_t kVocabRange = 1024;

struct RangeStatistics {
  float max = 0;
  float sum = 0;  // of exp(logit - max)
};

constexpr int64_t NumVocabRanges(int64_t vocab) {
  return (vocab + kVocabRange - 1) / kVocabRange;
}

// Statistics of each range of `logits` [vocab]: ranges [NumVocabRanges(vocab)].
void VocabStatistics(const float* logits, int64_t vocab, RangeStatistics* ranges);

// log(sum exp(logit)) over all ranges, by exp and log of the C library; NaN if any logit is NaN. A
// token's log-probability is its logit minus this value.
double LogSumExp(const RangeStatistics* ranges, int64_t num_ranges);

// ---- Both, as RowScores

class RowScorer {
 public:
  // `logits`: [vocab]. `next`: compute the log-probability of this id, which is below vocab.
  // Returns nothing if a logit is NaN.
  std::optional<RowScore> Score(std::span<const float> logits, int64_t top, std::optional<int32_t> next);

 private:
  std::vector<RangeStatistics> ranges_;
  std::vector<TopEntry> top_;
};

}  // namespace lime::cpu
