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

std::vector<TensorExtent> JoinExtents(const std::vector<WantedTensor>& wanted, Bytes max_gap) {
  std::vector<TensorExtent> extents;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const TensorLocation& at = wanted[i].at;
    if (!extents.empty()) {
      Extent& previous = extents.back().extent;
      const int64_t gap = at.offset - (previous.offset + previous.bytes);
      if (previous.file == at.file && gap >= 0 && gap <= max_gap) {
        previous.bytes = at.offset + at.bytes - previous.offset;
        extents.back().last = i + 1;
        continue;
      }
    }
    extents.push_back({.extent = {at.file, at.offset, at.bytes}, .first = i, .last = i + 1});
  }
  return extents;
}

}  // namespace lime
