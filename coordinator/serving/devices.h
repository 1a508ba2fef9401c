// The devices that a plan runs on, as the coordinator sees them: it installs a plan, gives orders,
// hears of tokens.
//
//   Install -> Open -> Send ... Send -> Unload
//     ▲ ▲                          │ │
//     │ └────────── Leave ◄────────┤ another plan is to go on
//     └── Free ◄── Abandon ◄───────┴ a device has failed
//
// Threads: one owner. News comes on threads of the devices.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device_news.h"
#include "common/device_report.h"
#include "common/order.h"
#include "common/order_message.h"
#include "planner/base/bytes.h"
#include "planner/plan/plan.h"

namespace lime {

class Devices {
 public:
  virtual ~Devices() = default;  // lets the devices unload what is open

  // News of a device, which is an index of the plan. FailedNews is the last of it. Whoever tells it
  // may hold locks: it takes what it is given and returns at once.
  using News = std::function<void(int32_t device, const FromDevice& what)>;

  struct InstallOptions {
    std::function<void(Bytes done, Bytes total)> progress;  // of all devices together; on any thread, one at a time
    const std::atomic<bool>* cancelled = nullptr;
    int64_t trace_spans = 0;     // room for spans on each device, for a trace; 0: nothing is recorded
    std::vector<KvSequence> kv;  // that go on with what Leave has left; empty: all begin anew
  };
  // Installs the plan, under an epoch that all of its devices take for new, wherever it has a
  // stage. What one refuses is unloaded from the others. DeviceOf(the error) is who it was.
  virtual absl::Status Install(Plan plan, const InstallOptions& options) = 0;
  virtual const Plan& plan() const = 0;                             // as installed
  virtual const std::vector<InstalledPlan>& installed() const = 0;  // by device of the plan

  // Returns when all devices await orders.
  virtual absl::Status Open(News news) = 0;
  // To every device of the plan that has a stage. One that refuses it fails.
  virtual void Send(const OrderMessage& order) = 0;

  // Of a device of the plan.
  virtual absl::StatusOr<DeviceStatistics> Statistics(int32_t device) const = 0;
  // Of the oldest step that has not ended, the share that is computed, as far as that is known here without asking anybody.
  virtual double StepShare() const { return 0; }
  // No more news comes, and the plan is unloaded everywhere; the first error, if any.
  virtual absl::Status Unload() = 0;
  // Likewise, but for the KV, which the plan that is installed next may take over.  REQUIRES: no
  // step is under way.
  struct Left {
    bool all = false;                       // of every device
    std::map<int32_t, std::string> hashes;  // of logits, by slot: LogitsHash::State
  };
  virtual absl::StatusOr<Left> Leave() = 0;
  // No more news comes; waits for nobody: devices that are there unload the plan by themselves.
  virtual void Abandon() = 0;
  // Names of the devices that are there and hold no plan; what is left there of the plans installed
  // here is unloaded.
  virtual std::set<std::string> Free() = 0;
};

// The name of the device that an error is about; empty where it is about none.
absl::Status WithDevice(const absl::Status& status, const std::string& device);
std::string DeviceOf(const absl::Status& status);
// Those of a plan's devices that have a stage, by name.
std::set<std::string> DevicesUsed(const Plan& plan);

}  // namespace lime
