#include "daemon/weights/stall_watch.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace lime {

StallWatch::StallWatch(const StallReport& report, const std::function<std::string()>& what, Bytes bytes_read)
    : report_(report), what_(what), seen_(bytes_read) {}

void StallWatch::Poll(Bytes bytes_read) {
  const absl::Time now = absl::Now();
  if (std::exchange(seen_, bytes_read) != bytes_read) last_byte_ = now, next_ = now + kStall;
  if (now < next_) return;
  next_ = now + kStall;
  reported_ = true;
  if (report_) {
    report_(absl::StrFormat("the disk has delivered nothing for %.0f s, waiting for %s", absl::ToDoubleSeconds(now - last_byte_), what_()));
  }
}

void StallWatch::End() {
  if (reported_ && report_) report_(absl::StrFormat("the disk delivers again after %.1f s", absl::ToDoubleSeconds(elapsed())));
}

}  // namespace lime
