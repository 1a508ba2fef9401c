// Says so while a disk delivers nothing to somebody who waits for it.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "planner/base/bytes.h"

namespace lime {

using StallReport = std::function<void(const std::string&)>;  // takes a sentence for people; called on the waiting thread

// Of one wait. Slow is not stalled: only a disk that delivers nothing at all is worth a word.
class StallWatch {
 public:
  static constexpr absl::Duration kStall = absl::Seconds(3);        // without a byte; reported again each time it has passed
  static constexpr absl::Duration kPoll = absl::Milliseconds(100);  // how often a wait should look

  // `what`: what is waited for, asked only when it is said. REQUIRES: both outlive the watch; `report` may be empty.
  StallWatch(const StallReport& report, const std::function<std::string()>& what, Bytes bytes_read)
      : report_(report), what_(what), seen_(bytes_read) {}

  // With the bytes that the disk has delivered so far.
  void Poll(Bytes bytes_read) {
    const absl::Time now = absl::Now();
    if (std::exchange(seen_, bytes_read) != bytes_read) last_byte_ = now, next_ = now + kStall;
    if (now < next_) return;
    next_ = now + kStall;
    reported_ = true;
    if (report_) {
      report_(
          absl::StrFormat("the disk has delivered nothing for %.0f s, waiting for %s", absl::ToDoubleSeconds(now - last_byte_), what_()));
    }
  }

  // The wait is over, and was not given up.
  void End() {
    if (reported_ && report_) report_(absl::StrFormat("the disk delivers again after %.1f s", absl::ToDoubleSeconds(elapsed())));
  }

  bool stalled() const { return reported_; }
  absl::Duration elapsed() const { return absl::Now() - begin_; }

 private:
  const StallReport& report_;
  const std::function<std::string()>& what_;
  const absl::Time begin_ = absl::Now();
  absl::Time last_byte_ = begin_;
  absl::Time next_ = begin_ + kStall;
  Bytes seen_;
  bool reported_ = false;
};

}  // namespace lime
