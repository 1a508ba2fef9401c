// Spans on their way from the threads that measure them to whoever collects them: a ring of fixed size.
//
// Where nobody traces there is no ring, and its users do nothing but look at a null pointer.
// Threads: Add from any, without a lock; Take from one at a time.
// Memory: allocated and touched when it is made, never later.
// A span that finds the ring full is counted and dropped: the computation does not wait for who watches it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/plan/timeline_span.h"

namespace lime {

class TraceRing {
 public:
  // Room for `spans`, rounded up to a power of two.
  explicit TraceRing(size_t spans);

  void Add(const TimelineSpan& span);

  // Appends up to `most` spans, oldest first.
  void Take(size_t most, std::vector<TimelineSpan>& spans);

  int64_t lost() const { return lost_.load(std::memory_order_relaxed); }
  size_t size() const { return slots_.size(); }

 private:
  // Free for the span with number `turn`, or holds that with number `turn` - 1.
  struct Slot {
    std::atomic<uint64_t> turn = 0;
    TimelineSpan span;
  };

  std::vector<Slot> slots_;
  std::atomic<uint64_t> next_ = 0;  // span to be added
  uint64_t oldest_ = 0;             // to be taken
  std::atomic<int64_t> lost_ = 0;
};

}  // namespace lime
