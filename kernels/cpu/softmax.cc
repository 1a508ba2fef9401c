#include "kernels/cpu/softmax.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cpu/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// Logits i .. i + 15 of n; -inf, which adds nothing, beyond them.
HWY_INLINE F32x16 LoadLogits(const float* logits, int64_t i, int64_t n) {
  if (i + kLanes <= n) return Load(logits + i);
  alignas(64) float padded[kLanes];
  std::fill(padded, padded + kLanes, -INFINITY);
  std::copy(logits + i, logits + n, padded);
  return Load(padded);
}

void Statistics(const float* logits, int64_t n, RangeStatistics* out) {
  F32x16 largest = Set(-INFINITY);
  for (int64_t i = 0; i < n; i += kLanes) largest = Greater(LoadLogits(logits, i, n), largest);
  const float max = std::max(ReduceMax(largest), -FLT_MAX);  // a range of -inf has sum 0, not NaN
  F32x16 sum = Zero();
  for (int64_t i = 0; i < n; i += kLanes) sum = Add(sum, Exp(Sub(LoadLogits(logits, i, n), Set(max))));
  *out = {max, ReduceAdd(sum)};
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(Statistics);

void VocabStatistics(ThreadPool& pool, const float* logits, int64_t vocab, RangeStatistics* ranges) {
  pool.ParallelFor(NumVocabRanges(vocab), [&](int64_t range, int /*thread*/) {
    const int64_t first = range * kVocabRange;
    HWY_DYNAMIC_DISPATCH(Statistics)(logits + first, std::min(kVocabRange, vocab - first), &ranges[range]);
  });
}

double LogSumExp(const RangeStatistics* ranges, int64_t num_ranges) {
  double max = -INFINITY, sum = 0;
  for (int64_t i = 0; i < num_ranges; ++i) max = std::max(max, static_cast<double>(ranges[i].max));
  for (int64_t i = 0; i < num_ranges; ++i) sum += ranges[i].sum * std::exp(static_cast<double>(ranges[i].max) - max);
  return max + std::log(sum);
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
