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
#include "proto/convert.h"

namespace lime {

class ClusterClient final : public Devices {
 public:
  struct Device {
    std::string name, address;
    std::string weights;  // folder on it; empty: what it was pushed, or the one that it was started with
    uint64_t model = 0;   // ModelDigest, for what it was pushed; 0: not said
    std::string start;    // what to type where nobody listens (ProbeTarget)
  };
  struct Options {
    std::vector<Device> devices;
    ClusterKeys keys;
    std::optional<WeightsDigest> digest = std::nullopt;  // of the whole model, which devices compare with theirs; nothing: they do not
    absl::Duration connect = absl::Seconds(5);           // for a device to answer
    absl::Duration silence = absl::Seconds(2);           // a device that says nothing for so long is lost
  };
  // Asks every device how it is; the first that does not answer as it should is the error, as AskHealth tells it.
  static absl::StatusOr<std::unique_ptr<ClusterClient>> Connect(Options options);
  ~ClusterClient() override;

  const std::vector<DeviceHealth>& health() const { return health_; }

  // All devices load at once. One that does not answer while it loads is lost.
  absl::Status Install(Plan plan, const InstallOptions& options) override;
  const Plan& plan() const override { return plan_; }
  const std::vector<InstalledPlan>& installed() const override { return installed_; }

  // Opens the streams of orders.
  absl::Status Open(News news) override;
  void Send(const OrderMessage& order) override;

  absl::StatusOr<DeviceStatistics> Statistics(int32_t device) const override;
  absl::Status Unload() override;
  absl::StatusOr<Left> Leave() override;
  void Abandon() override;
  // Waits a second for each device to answer.
  std::set<std::string> Free() override;

 private:
  class Impl;
  explicit ClusterClient(std::unique_ptr<Impl> impl);
  absl::Status InstallNew(Plan plan, const InstallOptions& options);

  std::unique_ptr<Impl> impl_;
  std::vector<DeviceHealth> health_;
  std::vector<InstalledPlan> installed_;
  Plan plan_;
  std::optional<Plan> left_;  // whose KV devices may still hold
  std::set<int64_t> epochs_;  // of all plans that were ever installed
};

// FailedPrecondition: a device that another coordinator uses. `who` opens the sentence.  REQUIRES: health.used_by
absl::Status InUse(const std::string& who, const DeviceHealth& health);

}  // namespace lime
