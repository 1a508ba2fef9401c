// Measures how fast a disk reads the parts that stream, in the long run. A disk that has rested is
// faster at first: it answers from a cache, or a limit on its rate has saved up bytes that were not
// used. So the beginning after each rest does not count. After a longer rest, this beginning is
// longer. Pure.
//
//   loads    |---- ----- ---- -----| rest |--| rest |----- ---- ----|
//   counts        . [-------------]                     . [--------]
//            .: kBeginningMs after the first load began, or twice the rest if that is less
//
// Thread: the owner's.
#pragma once

#include <algorithm>
#include <optional>

#include "planner/base/bytes.h"

namespace lime {

class DiskMeter {
 public:
  void LoadBegun(double now_ms) {
    if (under_way_++ == 0) counts_from_ms_ = now_ms + std::min(kBeginningMs, 2 * (now_ms - rests_since_ms_));
  }

  // `bytes_read`: by all loads so far.  REQUIRES: a load is under way
  void LoadEnded(double now_ms, Bytes bytes_read) {
    if (from_) {
      const double ms = std::max(0.0, now_ms - from_->at_ms);
      ms_ += ms, bytes_ += bytes_read - from_->bytes_read;
      from_ = {from_->at_ms + ms, bytes_read};
    } else if (now_ms >= counts_from_ms_) {
      from_ = {now_ms, bytes_read};
    }
    if (--under_way_ > 0) return;
    from_.reset();
    rests_since_ms_ = now_ms;
  }

  double ms() const { return ms_; }
  Bytes bytes() const { return bytes_; }  // in that time

  static constexpr double kBeginningMs = 200;

 private:
  struct Moment {
    double at_ms = 0;
    Bytes bytes_read = 0;
  };
  int under_way_ = 0;
  double rests_since_ms_ = -kBeginningMs;
  double counts_from_ms_ = 0;
  std::optional<Moment> from_;  // the end of the last load that counts
  double ms_ = 0;
  Bytes bytes_ = 0;
};

}  // namespace lime
