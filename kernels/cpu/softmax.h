// Softmax statistics over the vocabulary.
//
// Order (portable-f32-1): fixed ranges of 1,024 ids. Within one, lane id % 16 adds exp(logit - max), ids ascending, and the lanes as
// ReduceAdd does. Ranges are merged in ascending order, wherever they were computed.
#pragma once

#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace lime::cpu {

inline constexpr int64_t kVocabRange = 1024;

struct RangeStatistics {
  float max = 0;
  float sum = 0;  // of exp(logit - max)
};

constexpr int64_t NumVocabRanges(int64_t vocab) {
  return (vocab + kVocabRange - 1) / kVocabRange;
}

// Statistics of each range of `logits` [vocab]: ranges [NumVocabRanges(vocab)].
void VocabStatistics(ThreadPool& pool, const float* logits, int64_t vocab, RangeStatistics* ranges);

// log(sum exp(logit)) over all ranges; NaN if any logit is. A token's log-probability is its logit minus this.
double LogSumExp(const RangeStatistics* ranges, int64_t num_ranges);

}  // namespace lime::cpu
