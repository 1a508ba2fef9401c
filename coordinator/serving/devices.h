// The devices of a plan, as the coordinator sees them. It installs a plan on them, sends orders,
// and receives news.
//
//   Install -> Open -> Send ... Send -> Unload
//     ▲ ▲                          │ │
//     │ └─────── HandOver ◄────────┤ another plan takes over
//     └── Free ◄── Abandon ◄───────┴ a device has failed; HaveKeptKv: the next plan takes over
//
// Threads: one owner; another thread may Install while it waits. News comes on threads of the
// devices.
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
#include "common/json_schema/vocabulary.h"
#include "common/order.h"
#include "common/order_message.h"
#include "planner/base/bytes.h"
#include "planner/plan/plan.h"

namespace lime {

class Devices {
 public:
  virtual ~Devices() = default;  // makes the devices unload the open plan

  // News of `device`, an index of the plan. FailedNews is the last news of a device. The caller may
  // hold locks, so the function stores the news and returns at once.
  using News = std::function<void(int32_t device, const FromDevice& what)>;

  struct InstallOptions {
    // The sum of all devices. On any thread, one call at a time.
    std::function<void(Bytes done, Bytes total)> progress;
    const std::atomic<bool>* cancelled = nullptr;
    int64_t trace_spans = 0;  // trace spans kept on each device; 0: no trace
    // Spans are recorded only while somebody asks for them (TraceCall).
    bool trace_when_asked = false;
    std::vector<KvSequence> kv;  // sequences that continue with KV from HandOver
  };
  // Installs the plan on every device that has a stage, under an epoch that is new to all of them.
  // If one device refuses the plan, the others unload it. DeviceOf(the error) names that device.
  virtual absl::Status Install(Plan plan, const InstallOptions& options) = 0;
  // The texts of the model's tokens, for requests with a format. A device with the head gets them
  // before the first order that needs them, once for as long as it runs.  Thread: any, before the
  // first Open
  virtual void UseVocabulary(const json_schema::VocabularyPtr& /*vocabulary*/) {}
  virtual const Plan& plan() const = 0;                             // as it was installed
  virtual const std::vector<InstalledPlan>& installed() const = 0;  // by device of the plan

  // Returns when all devices wait for orders.
  virtual absl::Status Open(News news) = 0;
  // Sends to every device of the plan that has a stage. A device that refuses the order fails.
  virtual void Send(const OrderMessage& order) = 0;

  // `device` is an index of the plan.
  virtual absl::StatusOr<DeviceStatistics> Statistics(int32_t device) const = 0;
  // The computed share of the oldest step that has not ended, as far as it is known here. Asks no
  // device.
  virtual double StepShare() const { return 0; }
  // Stops news and unloads the plan on all devices. Returns the first error, if any.
  virtual absl::Status Unload() = 0;
  // Unload, but the devices keep the KV so that the next plan can take it over.  REQUIRES: no step
  // is under way.
  struct Handover {
    bool all = false;                       // every device kept its KV
    std::map<int32_t, std::string> hashes;  // of logits, by slot: LogitsHash::State
  };
  virtual absl::StatusOr<Handover> HandOver() = 0;
  // Stops news and waits for no device. Devices that are there unload the plan by themselves. They
  // keep its KV for a while, unless they have failed.
  virtual void Abandon() = 0;
  // After Abandon, for the plan that was open: whether all its devices have kept their KV, so that
  // the next plan can take it over. They may have stopped at different steps, in the middle of them.
  virtual bool HaveKeptKv() { return false; }
  // Unloads plans that were installed from here and are still on devices. Returns the names of the
  // devices that answer and then hold no plan.
  virtual std::set<std::string> Free() = 0;
};

// The name of the device that an error is about; empty if it is about none.
absl::Status WithDevice(const absl::Status& status, const std::string& device);
std::string DeviceOf(const absl::Status& status);
// Names of the devices of a plan that have a stage.
std::set<std::string> DevicesUsed(const Plan& plan);

}  // namespace lime
