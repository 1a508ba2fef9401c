#include "kernels/cpu/topk.h"

#include <algorithm>

#include "kernels/cpu/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/topk.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// First of [i, n) in steps of 16 whose group holds a logit above `threshold` or a NaN; the first group that is not whole counts as one.
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

HWY_EXPORT(SkipSmaller);

namespace {

// a is listed before b. As the order of a heap it keeps the entry listed last at the front.
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

}  // namespace lime::cpu
#endif  // HWY_ONCE
