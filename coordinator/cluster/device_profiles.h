// Devices described in one JSON file, to plan for a cluster that does not exist. `lime plan
// --device-profiles` reads it.
//
//     {"link": {"bandwidth": "100Mbit/s", "latency_ms": 0.3},
//      "devices": [
//        {"name": "orin", "memory": "26GiB", "read_bytes_per_second": 143.36e9, "flops": 20e12,
//         "block_overhead_ms": 0.12, "disk": {"bytes_per_second": 2e9, "latency_ms": 0.3}},
//        {"name": "box", "memory_bytes": 8589934592, "profile": {...},
//         "links": [{"peer": "orin", "bytes_per_second": 125e6, "latency_ms": 0.1}]}]}
//
// `profile` is the output of `lime profile --out`; without it the device's own rate fields count.
// `runtime_bytes`, `activation_bytes` and `margin_bytes` are the memory that weights and KV cannot
// use; missing ones are assumed (device_memory.h).
// Pure. Hostile input: bounded; the error names the first wrong field. An unknown field is an
// error, and so are two fields for the same value.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/device/device_profile.h"

namespace lime {

struct DescribedDevice {
  std::string name;
  std::string numerics_id;  // empty: not given
  Bytes memory = 0;
  std::optional<Bytes> runtime, activations, margin;
  DeviceProfile profile;
};

struct DescribedCluster {
  std::vector<DescribedDevice> devices;  // at least one; names differ
  std::optional<LinkPoint> link;         // for pairs without a link of their own; `peer` is empty

  // Null: there is no such device.
  const DescribedDevice* Find(std::string_view name) const;
};

// `name` (the path) opens every error.
absl::StatusOr<DescribedCluster> ParseDeviceProfiles(std::string_view text, std::string_view name);
// The text that ParseDeviceProfiles reads.
std::string ToJsonText(const DescribedCluster& cluster);

// The file with the measured profiles of a cluster, next to its file: "shelf.profiles.json" for
// "shelf.toml".
std::string ProfilesPathOf(const std::string& cluster_path);

}  // namespace lime
