// The rates that a plan depends on: its links, and the disks and computing of its devices. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "common/device_report.h"
#include "planner/base/bytes.h"
#include "planner/plan/plan.h"

namespace lime {

struct RateKey {
  enum class Kind : uint8_t { kLink, kDisk, kCompute };
  Kind kind = Kind::kLink;
  std::string device;
  std::string peer;  // of a link, which has a direction

  friend auto operator<=>(const RateKey&, const RateKey&) = default;  // NOLINT(modernize-use-nullptr): no pointer is compared
};

// Links in bytes per second; disks and computing relative to the device's profile.
using ClusterRates = std::map<RateKey, double>;
// How long ago rates were measured. Missing ones: now.
using RateAges = std::map<RateKey, absl::Duration>;

inline RateKey LinkKey(std::string from, std::string to) {
  return {RateKey::Kind::kLink, std::move(from), std::move(to)};
}
inline RateKey DiskKey(std::string device) {
  return {RateKey::Kind::kDisk, std::move(device), ""};
}
inline RateKey ComputeKey(std::string device) {
  return {RateKey::Kind::kCompute, std::move(device), ""};
}

// Milliseconds that the plan predicts to read `bytes` of the weights that the device streams or is
// expected to load on demand; 0 if there are none.
double PlannedLoadMs(const Plan& plan, const std::string& device, Bytes bytes);

// "link a -> b: 100 -> 20 Mbit/s", "disk of a: 1 -> 0.3 times its profile".
std::string DescribeRates(const RateKey& key, double planned, double now);

// Computes rates from the work of devices under a plan. Each rate covers the time since the rate
// before.
class RateMeter {
 public:
  // Adds to `rates` the disk and the computing of `device`, relative to `plan`, if they were busy
  // long enough to measure.
  void Add(const Plan& plan, const std::string& device, const DeviceStatistics& work, ClusterRates& rates);

 private:
  std::map<std::string, DeviceStatistics> newest_;  // by device
};

}  // namespace lime
