// Places for streamed pieces in one range of memory, given and taken back first in, first out.
//
// Pure: offsets only, the memory is the owner's.   Thread: the owner's.
// Invariant: a place is contiguous; what does not fit before the end begins again at 0, and the rest of the end stays unused until then.
#pragma once

#include <deque>
#include <optional>

#include "planner/base/bytes.h"
#include "planner/base/check.h"

namespace lime {

class ByteRing {
 public:
  explicit ByteRing(Bytes capacity) : capacity_(capacity) {}

  // The offset of `bytes` contiguous bytes behind the newest place; nothing where they are not free. An empty ring holds anything up to
  // its capacity.  REQUIRES: 0 < bytes
  std::optional<Bytes> Allocate(Bytes bytes) {
    LIME_CHECK_GT(bytes, 0);
    std::optional<Bytes> offset;
    if (places_.empty()) {
      if (bytes <= capacity_) offset = 0;
    } else {
      const Bytes next = places_.back().offset + places_.back().bytes, oldest = places_.front().offset;
      const bool wrapped = next <= oldest;  // full where equal: a place is never empty
      if (bytes <= (wrapped ? oldest : capacity_) - next) {
        offset = next;
      } else if (!wrapped && bytes <= oldest) {
        offset = 0;
      }
    }
    if (offset) places_.push_back({*offset, bytes});
    return offset;
  }

  // Takes the oldest place back.  REQUIRES: not empty.
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
