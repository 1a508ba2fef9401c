#include "kernels/cpu/row_scorer.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cpu/base/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/row_scorer.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/base/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// Loads logits i .. i + 15 of n. Lanes beyond n are -inf, which adds nothing.
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

// Returns the first i, in steps of 16, whose group has a logit above `threshold` or a NaN. If there
// is none, the first group that is not whole.
int64_t SkipSmaller(const float* logits, int64_t i, int64_t n, float threshold) {
  const LaneTag d;
  const auto limit = hn::Set(d, threshold);
  for (; i + kLanes <= n; i += kLanes) {
    bool found = false;
    for (int v = 0; v < kVecs; ++v) found |= !hn::AllTrue(d, hn::Le(hn::LoadU(d, logits + i + v * kVecLanes), limit));
    if (found) return i;
  }
  return i;
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(Statistics);

void VocabStatistics(const float* logits, int64_t vocab, RangeStatistics* ranges) {
  for (int64_t range = 0; range < NumVocabRanges(vocab); ++range) {
    const int64_t first = range * kVocabRange;
    HWY_DYNAMIC_DISPATCH(Statistics)(logits + first, std::min(kVocabRange, vocab - first), &ranges[range]);
  }
}

double LogSumExp(const RangeStatistics* ranges, int64_t num_ranges) {
  double max = -INFINITY, sum = 0;
  for (int64_t i = 0; i < num_ranges; ++i) max = std::max(max, static_cast<double>(ranges[i].max));
  for (int64_t i = 0; i < num_ranges; ++i) sum += ranges[i].sum * std::exp(static_cast<double>(ranges[i].max) - max);
  return max + std::log(sum);
}

HWY_EXPORT(SkipSmaller);

namespace {

// Whether a is listed before b. In a heap with this order the front entry is the one listed last.
bool Before(const TopEntry& a, const TopEntry& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

}  // namespace

int64_t TopK(const float* logits, int64_t n, int64_t k, TopEntry* top) {
  k = std::min(k, n);
  int64_t count = 0, i = 0;
  while (i < n) {
    if (k == 0 || count == k) i = HWY_DYNAMIC_DISPATCH(SkipSmaller)(logits, i, n, k == 0 ? INFINITY : top[0].value);
    for (const int64_t end = std::min<int64_t>(i + 16, n); i < end; ++i) {
      if (logits[i] != logits[i]) return -1;
      const TopEntry entry{logits[i], static_cast<int32_t>(i)};
      if (count < k) {
        top[count++] = entry;
        std::push_heap(top, top + count, Before);
      } else if (k > 0 && Before(entry, top[0])) {
        std::pop_heap(top, top + k, Before);
        top[k - 1] = entry;
        std::push_heap(top, top + k, Before);
      }
    }
  }
  std::sort_heap(top, top + count, Before);
  return count;
}

std::optional<RowScore> RowScorer::Score(std::span<const float> logits, int64_t top, std::optional<int32_t> next) {
  const auto vocab = static_cast<int64_t>(logits.size());
  top_.resize(static_cast<size_t>(std::min(top, vocab)) + 1);
  const int64_t kept = TopK(logits.data(), vocab, std::min(top, vocab), top_.data());
  if (kept < 0) return std::nullopt;
  RowScore score;
  for (int64_t i = 0; i < kept; ++i) score.top.emplace_back(top_[static_cast<size_t>(i)].id, top_[static_cast<size_t>(i)].value);
  if (!next) return score;
  ranges_.resize(static_cast<size_t>(NumVocabRanges(vocab)));
  VocabStatistics(logits.data(), vocab, ranges_.data());
  score.log_sum = LogSumExp(ranges_.data(), static_cast<int64_t>(ranges_.size()));
  score.logprob = logits[static_cast<size_t>(*next)] - *score.log_sum;
  return score;
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
