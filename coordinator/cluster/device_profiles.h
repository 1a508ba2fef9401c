// Devices described in one JSON file, for planning a cluster that is not there: what `lime plan --device-profiles` reads.
//
//     {"link": {"bandwidth": "100Mbit/s", "latency_ms": 0.3},
//      "devices": [
//        {"name": "orin", "memory": "26GiB", "read_bytes_per_second": 143.36e9, "flops": 20e12, "block_overhead_ms": 0.12,
//         "disk": {"bytes_per_second": 2e9, "latency_ms": 0.3}},
//        {"name": "box", "memory_bytes": 8589934592, "profile": {...},
//         "links": [{"peer": "orin", "bytes_per_second": 125e6, "latency_ms": 0.1}]}]}
//
// `profile` is what `lime profile --out` writes; without it the rates beside the name are taken. Of the memory, `runtime_bytes`,
// `activation_bytes` and `margin_bytes` are not for weights and KV; where they are not said they are assumed (device_memory.h).
// Pure. Hostile input: bounded, and the first wrong field is named. A field that is not known is wrong, and so are two that say the same.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/device_profile.h"

namespace lime {

struct DescribedDevice {
  std::string name;
  std::string numerics_id;  // empty: not said
  Bytes memory = 0;
  std::optional<Bytes> runtime, activations, margin;
  DeviceProfile profile;
};

struct DescribedCluster {
  std::vector<DescribedDevice> devices;  // at least one; names differ
  std::optional<LinkPoint> link;         // wherever no device names one; `peer` is empty

  // Null: it is not described.
  const DescribedDevice* Find(std::string_view name) const;
};

// `name` (the path) opens every error.
absl::StatusOr<DescribedCluster> ParseDeviceProfiles(std::string_view text, std::string_view name);
// What ParseDeviceProfiles reads.
std::string ToJsonText(const DescribedCluster& cluster);

// Where what was measured of a cluster is kept: beside its file, "shelf.profiles.json" for "shelf.toml".
std::string ProfilesPathOf(const std::string& cluster_path);

}  // namespace lime
