// Carries out what a ResidencyLogic (daemon/logic/residency_logic.h) decides of a stage's memory: compiles, frees and grows, opens rows,
// and watches the machine's memory where that is asked for.
//
// Thread: the owner's, under its lock, but for Watch and Stop. A thread of its own frees, grows, compiles; another watches the memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "daemon/engine/stage_compute.h"
#include "daemon/engine/stage_parts.h"
#include "daemon/engine/worker_thread.h"
#include "daemon/logic/residency_logic.h"
#include "daemon/logic/residency_policy.h"
#include "daemon/pressure/pressure_monitor.h"
#include "planner/base/status.h"
#include "planner/plan/program.h"
#include "planner/program_runner.h"

namespace lime {

class StageResidency {
 public:
  struct Owner {
    absl::Mutex* mutex = nullptr;
    // Called under its lock, but for the last.
    StageLogic::Actions* actions = nullptr;  // of its StageLogic; `carry_out` carries them out, and orders behind them
    std::function<void()> carry_out;
    std::function<void(const absl::Status& status)> fail;
    std::function<void(int64_t load, const absl::Status& status)> loaded;
  };

  // `programs`: of the plan as it is (CompileAll).  REQUIRES: `parts` are open; they and all that the owner points to outlive this
  StageResidency(const StageParts& parts, std::vector<Program> programs, Owner owner);
  ~StageResidency();

  const ResidencyLogic& logic() const { return logic_; }
  // Steps begin: of `stage`, which has the logic's programs, with `compute`; both outlive this.
  void Start(StageLogic& stage, StageCompute* compute);
  // Watches the memory, where that is asked for.  Without the lock, after Start
  absl::Status Watch();
  // Nothing changes any more.  Without the lock
  void Stop();

  // ---- What the stage asks for

  void Order(const Residency& to);
  // A sequence has ended, or the machine's memory is looked at.
  void TryChange();
  void OnBorder();
  void Keep(const ProgramRunner::StartLoad& start);
  void OnStepEnded();

 private:
  ResidencyLogic::Options LogicOptions() const;
  void Look();
  void OnSample(const MemorySample& sample);

  void Carry();
  void Carry(const ResidencyLogic::Prepare& prepare);
  void Carry(const ResidencyLogic::ChangeWeights& change);
  void Carry(const ResidencyLogic::MakeRoom& make);
  void Carry(const ResidencyLogic::Resident& resident);
  void Carry(const ResidencyLogic::Most& most);
  void Carry(const ResidencyLogic::Report& report);
  void Compile(const ResidencyLogic::Prepare& prepare);

  const StageParts& parts_;
  const Plan& plan_;
  const int32_t device_;
  const Owner owner_;
  ResidencyLogic logic_;
  ResidencyLogic::Actions actions_;  // of the event at hand
  StageCompute* compute_ = nullptr;
  std::unique_ptr<RowReader> rows_;  // of an embedding that was given
  std::optional<WorkerThread> worker_;
  std::optional<ResidencyPolicy> policy_;  // where the memory is watched: how many bytes should be resident
  Bytes resident_ = 0;                     // that it knows of
  std::unique_ptr<PressureMonitor> monitor_;
};

}  // namespace lime
