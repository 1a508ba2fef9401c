// The devices of a cluster, over gRPC. All load a plan at once; a device that does not answer while
// it loads counts as lost. Open opens a stream of orders to each. Free waits at most one second for
// the answer of each device.
//
// Threads: one owner. News comes on gRPC's threads.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/serving/devices.h"
#include "planner/plan/plan.h"
#include "proto/certificate.h"
#include "proto/convert/convert.h"

namespace lime {

class ClusterClient : public Devices {
 public:
  struct Device {
    std::string name, address;
    std::string weights;  // folder on it; empty: pushed weights, or the daemon's own
    uint64_t model = 0;   // ModelDigest of pushed weights; 0: not given
    std::string start;    // how to start it, for errors (ProbeTarget)
  };
  struct Options {
    std::vector<Device> devices;
    ClusterKeys keys;
    // Digest of the whole model; devices compare it with theirs. nullopt: no comparison.
    std::optional<WeightsDigest> digest = std::nullopt;
    absl::Duration connect = absl::Seconds(5);  // limit for an answer
    absl::Duration silence = absl::Seconds(2);  // a silent device counts as lost after this time
  };
  // Asks every device for its health. The error is that of the first device with a fault
  // (AskHealth).
  static absl::StatusOr<std::unique_ptr<ClusterClient>> Connect(Options options);

  virtual const std::vector<DeviceHealth>& health() const = 0;  // when they were connected
};

// FailedPrecondition: another coordinator uses the device. `who` opens the sentence.
// REQUIRES: health.used_by
absl::Status InUse(const std::string& who, const DeviceHealth& health);

}  // namespace lime
