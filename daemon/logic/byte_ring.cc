#include "daemon/logic/byte_ring.h"

#include "planner/base/check.h"

namespace lime {

std::optional<Bytes> ByteRing::Allocate(Bytes bytes) {
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

void ByteRing::ReleaseOldest() {
  LIME_CHECK(!places_.empty());
  places_.pop_front();
}

}  // namespace lime
