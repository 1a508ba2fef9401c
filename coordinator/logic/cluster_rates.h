// How fast what a plan runs on is: its links, and the disks and the computing of its devices.
//
// Pure.
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
  std::string peer;  // of a link, which is directed

  friend auto operator<=>(const RateKey&, const RateKey&) = default;  // NOLINT(modernize-use-nullptr): no pointer is compared
};

// Links in bytes per second; disks and computing in times what the device's profile says.
using ClusterRates = std::map<RateKey, double>;
// How long ago rates were measured; those not named: now.
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

// Milliseconds that the plan says for reading so many bytes of what streams on the device; 0 where nothing does.
double PlannedLoadMs(const Plan& plan, const std::string& device, Bytes bytes);

// "link a -> b: 100 -> 20 Mbit/s", "disk of a: 1 -> 0.3 times its profile".
std::string DescribeRates(const RateKey& key, double planned, double now);

// Makes rates of what devices have done under a plan: each answer tells of the time since the one before.
//
// Thread: the owner's.
class RateMeter {
 public:
  // Adds the disk and the computing of `device`, where they worked for long enough to tell, in times what `plan` says.
  void Add(const Plan& plan, const std::string& device, const DeviceStatistics& work, ClusterRates& rates);

 private:
  std::map<std::string, DeviceStatistics> newest_;  // by device
};

}  // namespace lime
