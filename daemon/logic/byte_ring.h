// Places for streamed pieces in one range of memory, given and taken back first in, first out.
//
// Pure: offsets only, the memory is the owner's.   Thread: the owner's.
// Invariant: a place is contiguous; what does not fit before the end begins again at 0, and the rest of the end stays unused until then.
#pragma once

#include <deque>
#include <optional>

#include "planner/base/bytes.h"

namespace lime {

class ByteRing {
 public:
  explicit ByteRing(Bytes capacity) : capacity_(capacity) {}

  // The offset of `bytes` contiguous bytes behind the newest place; nothing where they are not free. An empty ring holds anything up to
  // its capacity.  REQUIRES: 0 < bytes
  std::optional<Bytes> Allocate(Bytes bytes);

  // Takes the oldest place back.  REQUIRES: not empty.
  void ReleaseOldest();

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
