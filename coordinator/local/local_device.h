// This process as the one device that a plan runs on: orders are handed to a stage here, which
// hands its news back. No socket and no message lies between them.
//
//   Send ──► StageSession ──► the stage: its compute thread, its disk's
//   news ◄── StageSession ◄──
//
// Threads: one owner. News comes on threads of the stage, under its locks; of an order that the
// stage refuses on the owner's. Traces may be taken on another thread.
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
    StageFactory make_stage;  // MakeEngineStages, or in tests something that computes nothing
    StallReport report;       // sentences for a person: of a disk that delivers nothing, of memory that others need; any thread
  };

  explicit LocalDevice(Options options);
  ~LocalDevice() override;

  // Takes minutes where the weights are many; kCancelled within moments after options.cancelled is
  // set. InvalidArgument where the plan is for several devices; else as StageEngine::Install.
  // REQUIRES: nothing is installed
  absl::Status Install(Plan plan, const InstallOptions& options) override;
  const Plan& plan() const override { return plan_; }
  const std::vector<InstalledPlan>& installed() const override { return installed_; }
  // How the weights of the plan came into memory.
  LoadSummary load() const { return session_ == nullptr ? LoadSummary{} : session_->load(); }

  absl::Status Open(News news) override;
  void Send(const OrderMessage& order) override;
  double StepShare() const override { return session_ != nullptr ? session_->StepShare() : 0; }

  absl::StatusOr<DeviceStatistics> Statistics(int32_t device) const override;
  // As a daemon answers it: spans since the last call, oldest first, where the installation asked for some. The clock is this process's.
  // FailedPrecondition while nothing is installed.  Thread: any, one call at a time
  absl::StatusOr<TraceChunk> TakeTrace(const TraceCall& call) const;
  absl::Status Unload() override;
  absl::StatusOr<Left> Leave() override;
  // Nobody else would unload it: waits for the computation at hand.
  void Abandon() override;
  std::set<std::string> Free() override;

 private:
  absl::StatusOr<InstalledPlan> Load(StageSession& session, const std::atomic<bool>* cancelled);
  void ShowToTrace(std::shared_ptr<StageSession> session);
  std::optional<KvTake> TakeOf(const Plan& plan, const std::vector<KvSequence>& sequences) const;

  const Options options_;
  Plan plan_;
  std::vector<InstalledPlan> installed_;
  std::shared_ptr<StageSession> session_;  // null: nothing is installed
  mutable absl::Mutex traced_mutex_;
  std::shared_ptr<StageSession> traced_ ABSL_GUARDED_BY(traced_mutex_);  // session_, for who traces it
  News news_;
  std::optional<Plan> before_;  // that has left its KV
  LeftByPlan left_;             // of it
};

}  // namespace lime
