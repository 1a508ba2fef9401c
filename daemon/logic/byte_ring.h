// Allocates places for streamed parts in one range of memory, first in, first out.
//
// Pure: offsets only; the owner has the memory.   Thread: the owner's.
// Invariant: a place is contiguous. One that does not fit before the end begins at 0.
#pragma once

#include <deque>
#include <optional>

#include "planner/base/bytes.h"
#include "planner/base/check.h"

namespace lime {

class ByteRing {
 public:
  explicit ByteRing(Bytes capacity) : capacity_(capacity) {}

  // Allocates `bytes` contiguous bytes behind the newest place and returns their offset. Nothing if
  // they are not free. An empty ring holds anything up to its capacity.  REQUIRES: 0 < bytes
  std::optional<Bytes> Allocate(Bytes bytes) {
    LIME_CHECK_GT(bytes, 0);
    std::optional<Bytes> offset;
    if (places_.empty()) {
      if (bytes <= capacity_) offset = 0;
    } else {
      const Bytes next = places_.back().offset + places_.back().bytes, oldest = places_.front().offset;
      const bool wrapped = next <= oldest;  // equal: full, since a place is never empty
      if (bytes <= (wrapped ? oldest : capacity_) - next) {
        offset = next;
      } else if (!wrapped && bytes <= oldest) {
        offset = 0;
      }
    }
    if (offset) places_.push_back({*offset, bytes});
    return offset;
  }

  // Frees the oldest place.  REQUIRES: not empty.
  void ReleaseOldest() {
    LIME_CHECK(!places_.empty());
    places_.pop_front();
  }

  bool empty() const { return places_.empty(); }
  Bytes capacity() const { return capacity_; }

 private:
  struct Place {
    Bytes offset, bytes;
  };
  Bytes capacity_;
  std::deque<Place> places_;  // oldest first
};

}  // namespace lime
