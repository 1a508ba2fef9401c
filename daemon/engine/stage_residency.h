// Carries out what a ResidencyLogic (daemon/logic/residency_logic.h) decides about a stage's
// memory: compiles Programs, frees and grows memory, opens readers of embedding rows. Watches the
// machine's memory if that is asked for.
//
// Thread: any, under the owner's lock, except Watch and Stop. A worker thread frees, grows and
// compiles; another thread watches the memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "daemon/engine/stage_compute.h"
#include "daemon/engine/stage_parts.h"
#include "daemon/logic/residency_logic.h"
#include "daemon/logic/residency_policy.h"
#include "daemon/machine/worker_thread.h"
#include "daemon/pressure/pressure_monitor.h"
#include "planner/base/status.h"
#include "planner/plan/program.h"
#include "planner/program/program_runner.h"

namespace lime {

class StageResidency {
 public:
  struct Owner {
    absl::Mutex* mutex = nullptr;
    // Functions are called under the lock, except `loaded`. `carry_out` carries out `actions`, the
    // StageLogic's, and then the waiting orders.
    StageLogic::Actions* actions = nullptr;
    std::function<void()> carry_out;
    std::function<void(const absl::Status& status)> fail;
    std::function<void(int64_t load, const absl::Status& status)> loaded;
  };

  // `programs`: of the plan as it is now (CompileAll).  REQUIRES: `parts` are open. They and
  // everything that the owner points to outlive this object
  StageResidency(const StageParts& parts, std::vector<Program> programs, Owner owner);
  ~StageResidency();

  const ResidencyLogic& logic() const { return owner_.mutex->AssertHeld(), logic_; }
  int64_t pressure_events() const { return owner_.mutex->AssertHeld(), policy_ ? policy_->falls() : 0; }
  // Steps begin. REQUIRES: `stage` has the logic's Programs; it and `compute` outlive this object
  void Start(StageLogic& stage, StageCompute* compute);
  // Watches the machine's memory if that is asked for. Called without the lock, after Start
  absl::Status Watch();
  // Ends all changes. Called without the lock
  void Stop();

  // ---- What the stage asks for

  void Order(const Residency& to);
  // A sequence has ended, or a sample of the machine's memory asks for a change.
  void TryChange();
  void OnBorder();
  void StartResidentLoad(const ProgramRunner::StartLoad& start);
  void OnStepEnded();

 private:
  ResidencyLogic::Options LogicOptions() const;
  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex);
  void OnSample(const MemorySample& sample);

  void Carry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex);
  void Carry(const ResidencyLogic::Prepare& prepare) ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex);
  void Carry(const ResidencyLogic::ChangeWeights& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex);
  void Carry(const ResidencyLogic::MakeRoom& make) ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex);
  void Carry(const ResidencyLogic::SetPlaces& set) ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex);
  void Carry(const ResidencyLogic::Resident& resident) ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex);
  void Carry(const ResidencyLogic::Most& most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex);
  void Carry(const ResidencyLogic::Report& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_.mutex);
  void Compile(const ResidencyLogic::Prepare& prepare);
  absl::Status SetPlaces(const PartPlaces& to);

  const StageParts& parts_;
  const Plan& plan_;
  const int32_t device_;
  const Owner owner_;
  ResidencyLogic logic_ ABSL_GUARDED_BY(owner_.mutex);
  ResidencyLogic::Actions actions_ ABSL_GUARDED_BY(owner_.mutex);  // of the current event
  StageLogic* stage_ ABSL_GUARDED_BY(owner_.mutex) = nullptr;
  StageCompute* compute_ ABSL_GUARDED_BY(owner_.mutex) = nullptr;
  std::unique_ptr<RowReader> rows_ ABSL_GUARDED_BY(owner_.mutex);  // of an embedding that was evicted
  std::optional<WorkerThread> worker_;
  // If the memory is watched: how many bytes should be resident.
  std::optional<ResidencyPolicy> policy_ ABSL_GUARDED_BY(owner_.mutex);
  Bytes resident_ ABSL_GUARDED_BY(owner_.mutex) = 0;  // as the policy knows it
  std::unique_ptr<PressureMonitor> monitor_ ABSL_GUARDED_BY(owner_.mutex);
};

}  // namespace lime
