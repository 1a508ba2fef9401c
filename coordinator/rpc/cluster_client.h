// The devices of a cluster, over gRPC.
//
// Threads: one owner. News comes on gRPC's threads.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/serving/devices.h"
#include "planner/plan/plan.h"
#include "proto/certificate.h"
#include "proto/convert/convert.h"

namespace lime {

class ClusterClient final : public Devices {
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
  ~ClusterClient() override;

  const std::vector<DeviceHealth>& health() const { return health_; }

  // All devices load at once. A device that does not answer while it loads counts as lost.
  absl::Status Install(Plan plan, const InstallOptions& options) override;
  const Plan& plan() const override { return plan_; }
  const std::vector<InstalledPlan>& installed() const override { return installed_; }

  // Opens a stream of orders to each device.
  absl::Status Open(News news) override;
  void Send(const OrderMessage& order) override;

  absl::StatusOr<DeviceStatistics> Statistics(int32_t device) const override;
  absl::Status Unload() override;
  absl::StatusOr<Handover> HandOver() override;
  void Abandon() override;
  // Waits at most one second for the answer of each device.
  std::set<std::string> Free() override;

 private:
  class Impl;
  explicit ClusterClient(std::unique_ptr<Impl> impl);
  absl::Status InstallNew(Plan plan, const InstallOptions& options);

  std::unique_ptr<Impl> impl_;
  std::vector<DeviceHealth> health_;
  std::vector<InstalledPlan> installed_;
  Plan plan_;
  std::optional<Plan> handed_over_;  // devices may still hold its KV
  std::set<int64_t> epochs_;         // of all plans installed so far
};

// FailedPrecondition: another coordinator uses the device. `who` opens the sentence.
// REQUIRES: health.used_by
absl::Status InUse(const std::string& who, const DeviceHealth& health);

}  // namespace lime
