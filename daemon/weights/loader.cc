#include "daemon/weights/loader.h"

#include "absl/time/clock.h"

namespace lime {

double LoadProgress::bytes_per_second() const {
  const double seconds = absl::ToDoubleSeconds(elapsed);
  return seconds > 0 ? static_cast<double>(done) / seconds : 0;
}

absl::Duration LoadProgress::remaining() const {
  const double rate = bytes_per_second();
  return rate > 0 ? absl::Seconds(static_cast<double>(total - done) / rate) : absl::InfiniteDuration();
}

LoadWatcher::LoadWatcher(const LoadOptions& options, Bytes total)
    : options_(options), total_(total), begin_(absl::Now()), next_(begin_ + kInterval) {}

void LoadWatcher::Report(Bytes done) {
  const absl::Time now = absl::Now();
  if (now < next_) return;
  next_ = now + kInterval;
  Call(done, now);
}

void LoadWatcher::Finish() {
  Call(total_, absl::Now());
}

void LoadWatcher::Call(Bytes done, absl::Time now) const {
  if (options_.progress) options_.progress({.done = std::min(done, total_), .total = total_, .elapsed = now - begin_});
}

}  // namespace lime
