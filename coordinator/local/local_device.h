// This process as the only device of a plan. A stage in this process executes the orders and
// returns its news, without sockets or messages.
//
//   Send ──► StageSession ──► the stage: its compute thread, its disk's
//   news ◄── StageSession ◄──
//
// Threads: one owner. News comes on threads of the stage, under its locks; an order that the stage
// refuses fails on the owner's thread. Statistics and DrainTrace may be called on other threads.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/device_report.h"
#include "coordinator/serving/devices.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/stage/stage_session.h"

namespace lime {

class LocalDevice final : public Devices {
 public:
  struct Options {
    std::string weights;      // folder of the checkpoint
    StageFactory make_stage;  // MakeEngineStages; in tests, stages that compute nothing
    StallReport report;       // tells the user of a stalled disk or memory pressure; any thread
  };

  explicit LocalDevice(Options options);
  ~LocalDevice() override;

  // Takes minutes for large weights. Errors: kCancelled soon after options.cancelled is set;
  // InvalidArgument if the plan is for several devices; else see StageEngine::Install.
  // REQUIRES: nothing is installed
  absl::Status Install(Plan plan, const InstallOptions& options) override;
  const Plan& plan() const override { return plan_; }
  const std::vector<InstalledPlan>& installed() const override { return installed_; }
  // How the weights of the plan were loaded.
  LoadSummary load() const { return session_ == nullptr ? LoadSummary{} : session_->load(); }

  void UseVocabulary(const json_schema::VocabularyPtr& vocabulary) override { vocabulary_ = vocabulary; }
  absl::Status Open(News news) override;
  void Send(const OrderMessage& order) override;
  double StepShare() const override { return session_ != nullptr ? session_->StepShare() : 0; }

  absl::StatusOr<DeviceStatistics> Statistics(int32_t device) const override;
  // The answer of a daemon: spans since the last call, oldest first, if the installation asked for
  // a trace. Times are of this process's clock. FailedPrecondition if nothing is installed.
  // Thread: any, one call at a time
  absl::StatusOr<TraceChunk> DrainTrace(const TraceCall& call) const;
  absl::Status Unload() override;
  absl::StatusOr<Handover> HandOver() override;
  // Waits for the running computation and unloads the plan.
  void Abandon() override;
  std::set<std::string> Free() override;

 private:
  absl::StatusOr<InstalledPlan> Load(StageSession& session, const std::atomic<bool>* cancelled);
  void Show(std::shared_ptr<StageSession> session);
  std::shared_ptr<StageSession> Shown() const;
  std::optional<KvTakeoverPlan> TakeoverFor(const Plan& plan, const std::vector<KvSequence>& sequences) const;

  const Options options_;
  json_schema::VocabularyPtr vocabulary_;
  Plan plan_;
  std::vector<InstalledPlan> installed_;
  std::shared_ptr<StageSession> session_;  // null: nothing is installed
  mutable absl::Mutex shown_mutex_;
  std::shared_ptr<StageSession> shown_ ABSL_GUARDED_BY(shown_mutex_);  // session_, for other threads
  News news_;
  std::optional<Plan> before_;  // the plan that has left its KV
  PlanHandover handover_;       // KV and weights of before_
};

}  // namespace lime
