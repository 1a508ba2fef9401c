#include "daemon/logic/trace_ring.h"

#include <algorithm>
#include <bit>

namespace lime {

TraceRing::TraceRing(size_t spans) : slots_(std::bit_ceil(std::max<size_t>(spans, 2))) {
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].turn.store(i, std::memory_order_relaxed);
}

// A slot is taken by whoever moves next_ past it; what was there before was taken out (Take) since its turn says so.
void TraceRing::Add(const TimelineSpan& span) {
  uint64_t number = next_.load(std::memory_order_relaxed);
  while (true) {
    Slot& slot = slots_[number & (slots_.size() - 1)];
    const uint64_t turn = slot.turn.load(std::memory_order_acquire);
    if (turn == number) {
      if (!next_.compare_exchange_weak(number, number + 1, std::memory_order_relaxed)) continue;  // it is another's; number is the next
      slot.span = span;
      slot.turn.store(number + 1, std::memory_order_release);
      return;
    }
    if (turn < number) {
      lost_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    number = next_.load(std::memory_order_relaxed);
  }
}

void TraceRing::Take(size_t most, std::vector<TimelineSpan>& spans) {
  for (; most > 0; --most, ++oldest_) {
    Slot& slot = slots_[oldest_ & (slots_.size() - 1)];
    if (slot.turn.load(std::memory_order_acquire) != oldest_ + 1) return;
    spans.push_back(slot.span);
    slot.turn.store(oldest_ + slots_.size(), std::memory_order_release);
  }
}

}  // namespace lime
