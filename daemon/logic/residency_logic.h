// What of a stage is in memory, which changes while its steps go on: by order, as KV pages take the place of parts that stream from then
// on; and where others on the machine need the memory, as long as they do. Pure: events in, actions out; memory, weights, compilation and
// the watch over the machine's memory are the driver's (StageResidency, or the simulated cluster).
//
//   order, pressure ──► its pages are free ──► Prepare ──► prepared: ChangeWeights ──► border ──► MakeRoom ──► room made ──► settled
//
// What is given for pressure is on top of what is ordered, and the coordinator knows nothing of it: a step takes longer, and that is all.
// A change that is ordered meanwhile waits for the one under way, as it would for an ordered one.
//
// Thread: the driver's, under its lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "daemon/logic/kv_book.h"
#include "daemon/logic/stage_logic.h"
#include "daemon/logic/weights_to_give.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/program.h"

namespace lime {

class ResidencyLogic {
 public:
  struct Options {
    int32_t device = 0;
    bool by_order = false;    // KV pages come as sequences go on
    int64_t layers = 0;       // whose KV is here
    bool ring_comes = false;  // a ring is there only while something streams
    // What may be given for pressure; nothing: the memory is not watched.
    std::optional<WeightsToGive::Options> giving;
  };

  // ---- Actions

  // Pages that go do so now, and the Programs of the change are made; off the token's way. Then OnPrepared, or OnNotPrepared.
  struct Prepare {
    std::shared_ptr<const Plan> from;
    Residency to;
    bool opens_rows = false;  // of an embedding that is given
  };
  // From step `border` on the parts of `after` that stream do, and no others. Where nothing is in memory that leaves, OnNothingLeaves.
  struct ChangeWeights {
    std::shared_ptr<const Plan> after;
    int64_t border = 0;
    bool embedding_leaves = false;
  };
  // Parts leave memory; then pages come, up to so many, and a ring where one is needed; off the token's way. Then OnRoomMade.
  struct MakeRoom {
    int64_t pages = 0, pages_before = 0;
    Bytes ring = 0;
    bool reads_rows = false;  // of the embedding, from now on
  };
  // What whoever watches the memory is to know: of weights that may be given so much is resident, and there is at most so much.
  struct Resident {
    Bytes bytes = 0;
  };
  struct Most {
    Bytes bytes = 0;
  };
  struct Report {
    std::string sentence;
  };
  using Action = std::variant<Prepare, ChangeWeights, MakeRoom, Resident, Most, Report>;
  using Actions = std::vector<Action>;

  // `programs`: of the plan as it is (CompileAll).  REQUIRES: `plan` is valid; it and `book` outlive this
  ResidencyLogic(const Plan& plan, std::vector<Program> programs, KvBook& book, Options options);
  // Steps begin.  REQUIRES: `stage` has programs(), and outlives this
  void Start(StageLogic& stage) { stage_ = &stage; }

  // ---- What there is

  // Of the steps that begin next, by micro-batches, ascending.
  const std::vector<Program>& programs() const { return programs_; }
  StageLogic::Memory memory() const { return {.programs = programs_, .must_begin = MustBegin(), .pages_come = PagesCome()}; }
  // Whether it may change at all.
  bool changes() const { return options_.by_order || options_.giving.has_value(); }
  // Positions of each sequence that may be away under the plan as it is.
  int64_t Reach() const { return ReachOf(*residency_); }
  int64_t num_changes() const { return num_changes_; }
  // Of weights that others need the memory of, less what reading them takes; and what can be given at all, in blocks of at most so much.
  Bytes given() const { return given_.bytes; }
  Bytes most() const { return most_; }
  Bytes largest() const { return to_give_ ? to_give_->largest() : 0; }

  // ---- Events

  // The last order counts.
  void OnOrder(const Residency& to, Actions& actions);
  // So much of what may be given is to be resident, from now on.
  void SetTarget(Bytes resident) { target_bytes_ = resident; }
  // What waited for pages that were held, for another target, or for another change, may begin.
  void TryChange(Actions& actions);
  // Nothing changes any more.
  void Stop() { stopped_ = true; }
  bool healthy() const { return stage_->health().ok(); }

  struct Prepared {
    Plan after;
    std::vector<Program> entering, settled;  // of its first step, and of all behind it
    bool opened_rows = false;
  };
  // What steps do about it is appended to `of_stage`, and is to be carried out behind `actions`.
  void OnPrepared(Prepared prepared, double now_ms, Actions& actions, StageLogic::Actions& of_stage);
  // `no_rows`: those of the embedding could not be opened. What is ordered has to be; what is given for pressure does not.
  void OnNotPrepared(bool no_rows, const absl::Status& why, Actions& actions, StageLogic::Actions& of_stage);
  void OnNothingLeaves(Actions& actions);
  // From this step on parts stream as they are to.
  void OnBorder(Actions& actions);
  void OnRoomMade(double now_ms, Actions& actions, StageLogic::Actions& of_stage);
  void OnStepEnded(Actions& actions);

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

  bool MustBegin() const;
  bool PagesCome() const;
  bool Idle() const { return !stage_->inbox().step_under_way() && stage_->inbox().NextOrder() == nullptr; }
  const PlanDevice& Device(const Plan& plan) const { return plan.devices[static_cast<size_t>(options_.device)]; }
  int64_t ReachOf(const Plan& plan) const;
  bool IsFree(const Residency& to);
  WeightsToGive::Choice ToGive(const Residency& ordered) const;
  void Begin(Residency ordered, bool by_order, Actions& actions);
  void NoteRing(std::vector<Program>& programs) const;
  void BeginRoom(Actions& actions);
  void TellResident(Actions& actions);
  void EndChange(Actions& actions);

  const Plan& plan_;
  const Options options_;
  KvBook& book_;
  std::vector<Program> programs_;
  StageLogic* stage_ = nullptr;

  std::shared_ptr<const Plan> residency_;  // the plan as it is, or as the change under way makes it
  Residency ordered_;                      // of it
  std::optional<Residency> target_;        // ordered and not begun
  Change change_;
  std::vector<Program> entering_;  // of the change under way
  std::vector<Program> settled_;   // when it has ended
  int64_t num_changes_ = 0;
  std::optional<WeightsToGive> to_give_;  // nothing: nothing is, for pressure
  Bytes most_ = 0;                        // that can be
  std::optional<Bytes> target_bytes_;     // that are to be resident; nothing: the memory is not watched yet
  WeightsToGive::Choice given_;           // as the change under way makes it
  bool has_rows_ = false, reads_rows_ = false;
  bool stopped_ = false;
};

}  // namespace lime
