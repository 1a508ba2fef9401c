#include "daemon/weights/loader.h"

#include "absl/time/clock.h"

namespace lime {

LoadWatcher::LoadWatcher(const LoadOptions& options, Bytes total) : options_(options), total_(total), next_(absl::Now() + kInterval) {}

void LoadWatcher::Report(Bytes done) {
  const absl::Time now = absl::Now();
  if (now < next_) return;
  next_ = now + kInterval;
  Call(done);
}

void LoadWatcher::Finish() {
  Call(total_);
}

void LoadWatcher::Call(Bytes done) const {
  if (options_.progress) options_.progress({.done = std::min(done, total_), .total = total_});
}

}  // namespace lime
