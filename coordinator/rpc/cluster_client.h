// The devices of a cluster as the coordinator sees them: asks how they are, installs a plan on them, gives orders, hears of tokens.
//
//   Connect -> Install -> Open -> Send ... Send -> Unload
//                 ▲ ▲                          │ │
//                 │ └────────── Leave ◄────────┤ another plan is to go on
//                 └── Free ◄── Abandon ◄───────┴ a device has failed
//
// Threads: one owner. News comes on gRPC's threads.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "planner/plan/plan.h"
#include "proto/cluster_keys.h"
#include "proto/convert.h"

namespace lime {

class ClusterClient {
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
  // News of a device, which is an index of the plan. FailedNews is the last of it.
  using News = std::function<void(int32_t device, FromDevice what)>;

  // Asks every device how it is; the first that does not answer as it should is the error, as AskHealth tells it.
  static absl::StatusOr<std::unique_ptr<ClusterClient>> Connect(Options options);
  ~ClusterClient();  // lets the devices unload what is open

  const std::vector<DeviceHealth>& health() const { return health_; }

  struct InstallOptions {
    std::function<void(Bytes done, Bytes total)> progress;  // of all devices together; on any thread, one at a time
    const std::atomic<bool>* cancelled = nullptr;
    int64_t trace_spans = 0;     // room for spans on each device, for TraceCollector to collect; 0: nothing is recorded
    std::vector<KvSequence> kv;  // that go on with what Leave has left; empty: all begin anew
  };
  // Installs the plan, under an epoch that all of its devices take for new, wherever it has a stage: all at once. What one refuses is
  // unloaded from the others. A device that does not answer while it loads is lost. DeviceOf(the error) is who it was.
  absl::Status Install(Plan plan, const InstallOptions& options);
  const Plan& plan() const { return plan_; }                                  // as installed
  const std::vector<InstalledPlan>& installed() const { return installed_; }  // by device of the plan

  // Opens the streams of orders; returns when all devices await orders.
  absl::Status Open(News news);
  // To every device of the plan that has a stage.
  void Send(const OrderMessage& order);

  // Of a device of the plan.
  absl::StatusOr<DeviceStatistics> Statistics(int32_t device) const;
  // Ends the streams and unloads the plan everywhere; the first error, if any.
  absl::Status Unload();
  // Likewise, but for the KV, which the plan that is installed next may take over.  REQUIRES: no step is under way.
  struct Left {
    bool all = false;                       // of every device
    std::map<int32_t, std::string> hashes;  // of logits, by slot: LogitsHash::State
  };
  absl::StatusOr<Left> Leave();
  // Ends the streams, and waits for nobody: devices that are there unload the plan by themselves.
  void Abandon();
  // Names of the devices that answer within a second and hold no plan; what is left there of the plans of this client is unloaded.
  std::set<std::string> Free();

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

// The name of the device that an error is about; empty where it is about none.
absl::Status WithDevice(const absl::Status& status, const std::string& device);
std::string DeviceOf(const absl::Status& status);
// Those of a plan's devices that have a stage, by name.
std::set<std::string> DevicesUsed(const Plan& plan);

}  // namespace lime
