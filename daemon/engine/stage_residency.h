// What of a stage is in memory, which changes while its steps go on: by order, as KV pages take the place of parts that stream from then
// on; and where others on the machine need the memory, as long as they do.
//
//   order, pressure ──► its pages are free ──► worker: pages go, Programs ──► Change ──► Border ──► worker: parts go, pages come ──►
//   settled
//
// What is given for pressure is on top of what is ordered, and the coordinator knows nothing of it: a step takes longer, and that is all.
// A change that is ordered meanwhile waits for the one under way, as it would for an ordered one.
//
// Thread: the owner's, under its lock, but for Watch and Stop. A thread of its own frees, grows, compiles; another watches the memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "daemon/engine/residency_control.h"
#include "daemon/engine/stage_compute.h"
#include "daemon/engine/stage_kv.h"
#include "daemon/engine/stage_weights.h"
#include "daemon/engine/worker_thread.h"
#include "daemon/logic/weights_to_give.h"
#include "daemon/weights/row_reader.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/program.h"
#include "planner/program_runner.h"

namespace lime {

class StageResidency {
 public:
  struct Options {
    int32_t device = 0;
    bool by_order = false;         // KV pages come as sequences go on
    std::vector<int32_t> layers;   // whose KV is here
    absl::Mutex* mutex = nullptr;  // the owner's
    Backend* backend = nullptr;
    StageKv* kv = nullptr;
    StageWeights* weights = nullptr;

    // Pressure; nothing: the memory is not watched.
    std::optional<PressureMonitor::Options> watching;
    absl::Duration hold = absl::Seconds(2);                                 // as ResidencyPolicy::Options
    bool tied = false;                                                      // embedding and head are one tensor
    Bytes rows_bytes = 0;                                                   // of what open_rows makes
    std::function<absl::StatusOr<std::unique_ptr<RowReader>>()> open_rows;  // any thread
    std::function<void(const std::string& sentence)> report;

    // The owner's, called under its lock, but for the last.
    std::function<bool()> healthy;
    std::function<int64_t()> steps_begun;
    std::function<bool()> idle;  // no step is under way, and none was ordered
    std::function<void(const std::vector<ProgramRunner::Action>& actions)> carry;
    std::function<void(const ProgramRunner::Event& event)> post;
    std::function<void()> pump;  // pages may be had that a step waits for
    std::function<void(const absl::Status& status)> fail;
    std::function<void(int64_t load, const absl::Status& status)> loaded;
  };

  // `programs`: of the plan as it is (CompileAll).  REQUIRES: the plan is valid; it and all that the options point to outlive this
  StageResidency(const Plan& plan, std::vector<Program> programs, Options options);
  ~StageResidency();

  // Of the steps that begin next, by micro-batches, ascending.
  const std::vector<Program>& programs() const { return programs_; }
  // Steps begin: `runner` of programs(), and `compute`, which outlive this.
  void Start(ProgramRunner* runner, StageCompute* compute) { runner_ = runner, compute_ = compute; }
  // Watches the memory, where that is asked for.  Without the lock, after Start
  absl::Status Watch();
  // Nothing changes any more.  Without the lock
  void Stop();

  // Whether it may change at all.
  bool changes() const { return options_.by_order || options_.watching.has_value(); }
  // The last order counts.
  void Order(const Residency& to);
  // What waited for pages that were held, or for another change, may begin.
  void TryChange();

  // Whether the next step has to wait for the change under way to begin; and whether pages come by it, whatever the next step does.
  bool MustBegin() const;
  bool PagesCome() const;

  // ---- What the runner asks for

  void OnBorder();
  void Keep(const ProgramRunner::StartLoad& start);
  void OnStepEnded();

  // Positions of each sequence that may be on the disk under the plan as it is.
  int64_t Reach() const { return ReachOf(*residency_); }

  int64_t num_changes() const { return num_changes_; }
  // Of weights that others need the memory of, less what reading them takes.
  Bytes given() const { return given_.bytes; }

 private:
  struct Change {
    bool under_way = false;
    bool by_order = false;   // else for pressure alone
    int64_t ordered_at = 0;  // steps begun by then
    int64_t pages_before = 0;
    bool begun = false;     // the runner has taken it
    bool at_work = false;   // room is being made
    bool has_room = false;  // and was made
    WeightsToGive::Choice to_give;
  };

  int64_t NumLayers() const { return static_cast<int64_t>(options_.layers.size()); }
  int64_t ReachOf(const Plan& plan) const;
  bool IsFree(const Residency& to);
  WeightsToGive::Choice ToGive(const Residency& ordered);
  void Begin(Residency ordered, bool by_order);
  WeightsToGive MakeToGive(bool embedding) const;
  void Prepare(const Plan& from, const Residency& to, bool opens_rows);
  void NoteRing(std::vector<Program>& programs) const;
  void GiveLess(bool no_rows, const absl::Status& why);
  void BeginChange();
  void TellResident();
  void MakeRoom();
  void EndChange();
  void OnPressure();

  const Plan& plan_;
  const Options options_;
  std::vector<Program> programs_;
  ProgramRunner* runner_ = nullptr;
  StageCompute* compute_ = nullptr;

  std::shared_ptr<const Plan> residency_;  // the plan as it is, or as the change under way makes it
  Residency ordered_;                      // of it
  std::optional<Residency> target_;        // ordered and not begun
  Change change_;
  std::vector<Program> entering_;  // of the change under way
  std::vector<Program> settled_;   // when it has ended
  int64_t num_changes_ = 0;
  std::optional<WeightsToGive> to_give_;  // nothing: nothing is, for pressure
  Bytes most_ = 0;                        // that can be
  WeightsToGive::Choice given_;           // as the change under way makes it
  std::unique_ptr<RowReader> rows_;       // of an embedding that was given
  bool reads_rows_ = false;
  bool stopped_ = false;
  std::optional<WorkerThread> worker_;
  std::unique_ptr<ResidencyControl> control_;
};

}  // namespace lime
