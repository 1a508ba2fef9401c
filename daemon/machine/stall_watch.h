// Reports while a disk delivers nothing to a thread that waits for it.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "planner/base/bytes.h"

namespace lime {

// Receives a sentence for people. Called on the waiting thread.
using StallReport = std::function<void(const std::string&)>;

// Watches one wait. A slow disk is not a stalled disk: only a disk that delivers no byte is
// reported.
class StallWatch {
 public:
  // A wait this long without a byte is reported, and again after each further such time.
  static constexpr absl::Duration kStall = absl::Seconds(3);
  static constexpr absl::Duration kPoll = absl::Milliseconds(100);  // how often a wait should look

  // `what` returns the name of the thing that the thread waits for; it is called only for a report.
  // `report` may be empty. REQUIRES: both outlive the watch.
  StallWatch(const StallReport& report, const std::function<std::string()>& what, Bytes bytes_read)
      : report_(report), what_(what), seen_(bytes_read) {}

  // `bytes_read`: bytes that the disk has delivered so far.
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

  // Call when the wait is over and was not given up.
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
