// Counts of a device over all plans, and the present rate of its disk, from the statistics that it
// answers. Pure.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/device_report.h"
#include "coordinator/cluster_view/cluster_facts.h"

namespace lime {

// Thread: the owner's.
// Bounds: kAnswers.
class DeviceHistory {
 public:
  void Add(const DeviceStatistics& statistics, absl::Time now);

  const std::optional<DeviceStatistics>& newest() const { return newest_; }
  const DeviceTotals& totals() const { return totals_; }
  Bytes sent_to(const std::string& peer) const;
  // Over the last kAnswers answers under one plan; nullopt: fewer than two.
  std::optional<double> disk_bytes_per_second() const;

 private:
  static constexpr size_t kAnswers = 5;
  struct Read {
    absl::Time at;
    Bytes bytes = 0;
  };
  std::optional<DeviceStatistics> newest_;
  DeviceTotals totals_;
  std::map<std::string, Bytes> sent_;  // by peer
  std::deque<Read> reads_;             // of the newest plan
};

}  // namespace lime
