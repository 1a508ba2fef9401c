// A ring of fixed size that carries spans from the threads that measure to the thread that
// collects.
//
// Without a trace there is no ring, and its users only look at a null pointer.
// Threads: Add from any, without a lock; Drain from one at a time.
// Memory: allocated and touched when it is made, never later.
// A span that finds the ring full is counted and dropped: computing never waits for the collector.
// A span that ends after RecordUntil is not recorded, and not counted.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "planner/plan/timeline_span.h"

namespace lime {

class TraceRing {
 public:
  // Room for `spans`, rounded up to a power of two.
  explicit TraceRing(size_t spans) : cells_(std::bit_ceil(std::max<size_t>(spans, 2))) {
    for (size_t i = 0; i < cells_.size(); ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
  }

  // The thread that moves next_ past a cell owns it. The turn says that Drain has emptied the cell.
  void Add(const TimelineSpan& span) {
    if (span.end_ms > until_ms_.load(std::memory_order_relaxed)) return;
    uint64_t number = next_.load(std::memory_order_relaxed);
    while (true) {
      Cell& cell = cells_[number & (cells_.size() - 1)];
      const uint64_t turn = cell.turn.load(std::memory_order_acquire);
      if (turn == number) {
        // Another thread has it; `number` is the next one now.
        if (!next_.compare_exchange_weak(number, number + 1, std::memory_order_relaxed)) continue;
        cell.span = span;
        cell.turn.store(number + 1, std::memory_order_release);
        return;
      }
      if (turn < number) {
        lost_.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      number = next_.load(std::memory_order_relaxed);
    }
  }

  // At first there is no end.  Thread: any
  void RecordUntil(double ms) { until_ms_.store(ms, std::memory_order_relaxed); }

  // Appends up to `most` spans, oldest first.
  void Drain(size_t most, std::vector<TimelineSpan>& spans) {
    for (; most > 0; --most, ++oldest_) {
      Cell& cell = cells_[oldest_ & (cells_.size() - 1)];
      if (cell.turn.load(std::memory_order_acquire) != oldest_ + 1) return;
      spans.push_back(cell.span);
      cell.turn.store(oldest_ + cells_.size(), std::memory_order_release);
    }
  }

  int64_t lost() const { return lost_.load(std::memory_order_relaxed); }
  size_t size() const { return cells_.size(); }

 private:
  // Free for the span with number `turn`, or holds the span with number `turn` - 1.
  struct Cell {
    std::atomic<uint64_t> turn = 0;
    TimelineSpan span;
  };

  std::vector<Cell> cells_;
  std::atomic<uint64_t> next_ = 0;  // span to be added
  uint64_t oldest_ = 0;             // to be taken
  std::atomic<int64_t> lost_ = 0;
  std::atomic<double> until_ms_ = std::numeric_limits<double>::infinity();
};

}  // namespace lime
