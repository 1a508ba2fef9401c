#include "coordinator/cluster_view/device_history.h"

#include <algorithm>

namespace lime {
namespace {

Bytes SentTo(const DeviceStatistics& statistics, const std::string& peer) {
  const auto found = std::ranges::find(statistics.traffic, peer, &PeerTraffic::peer);
  return found != statistics.traffic.end() ? found->sent : 0;
}

// The counts begin again with every plan.
bool Continues(const DeviceStatistics& before, const DeviceStatistics& now) {
  return before.epoch == now.epoch && before.steps <= now.steps && before.bytes_read <= now.bytes_read;
}

}  // namespace

void DeviceHistory::Add(const DeviceStatistics& statistics, absl::Time now) {
  const bool continues = newest_ && Continues(*newest_, statistics);
  const DeviceStatistics before = continues ? *newest_ : DeviceStatistics{};
  totals_.disk_read += statistics.bytes_read - before.bytes_read;
  totals_.wait_weights_seconds += (statistics.wait_weights_ms - before.wait_weights_ms) / 1000;
  totals_.compute_seconds += (statistics.compute_ms - before.compute_ms) / 1000;
  totals_.unit_hits += statistics.unit_hits - before.unit_hits;
  totals_.unit_misses += statistics.unit_misses - before.unit_misses;
  totals_.unit_bytes += statistics.unit_bytes - before.unit_bytes;
  for (const PeerTraffic& traffic : statistics.traffic) sent_[traffic.peer] += traffic.sent - SentTo(before, traffic.peer);
  if (!continues) reads_.clear();
  reads_.push_back({now, statistics.bytes_read});
  if (reads_.size() > kAnswers) reads_.pop_front();
  newest_ = statistics;
}

Bytes DeviceHistory::sent_to(const std::string& peer) const {
  const auto found = sent_.find(peer);
  return found != sent_.end() ? found->second : 0;
}

std::optional<double> DeviceHistory::disk_bytes_per_second() const {
  if (reads_.size() < 2 || reads_.back().at <= reads_.front().at) return std::nullopt;
  return static_cast<double>(reads_.back().bytes - reads_.front().bytes) / absl::ToDoubleSeconds(reads_.back().at - reads_.front().at);
}

}  // namespace lime
