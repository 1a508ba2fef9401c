// Decides which parts of a stage are in memory, while its steps go on. The choice changes by order:
// KV pages take the place of parts that stream from then on. It also changes while other programs
// on the machine need the memory. Pure: events in, actions out. The driver (StageResidency, or the
// simulated cluster) has the memory and weights, compiles, and watches the machine's memory.
//
//   order, pressure ──► pages to remove are free ──► Prepare ──► prepared: ChangeWeights ──► border
//                   ──► MakeRoom ──► room made ──► settled
//
// Weights evicted under pressure come on top of the ordered ones. The coordinator does not know of
// them: steps take longer, and that is all. A change that is ordered meanwhile waits until the
// current one has ended, whatever its reason.
//
//   pressure ──► SetPlaces ──► OnPlacesSet
//
// Parts on demand give places first (places_to_shed.h). No Program depends on places, so they go and
// come back at once, beside a change and in the middle of a step.
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
#include "daemon/logic/places_to_shed.h"
#include "daemon/logic/stage_logic.h"
#include "daemon/logic/weights_to_shed.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/program.h"

namespace lime {

class ResidencyLogic {
 public:
  struct Options {
    int32_t device = 0;
    bool by_order = false;    // pages come as sequences grow, and residency changes by order
    int64_t layers = 0;       // whose KV is here
    bool ring_comes = false;  // the ring exists only while something streams
    // The weights that may be evicted under pressure; nothing: the memory is not watched.
    std::optional<WeightsToShed::Options> shedding;
    int64_t token_units = 0;  // that one token chooses in a part on demand
  };

  // ---- Actions

  // While steps go on, frees the pages to remove, and compiles the Programs of the change. Then
  // OnPrepared, or OnNotPrepared.
  struct Prepare {
    std::shared_ptr<const Plan> from;
    Residency to;
    bool opens_rows = false;  // a reader for rows of an evicted embedding
  };
  // From step `border` on, residency is that of `after`: its streamed parts stream, and no others.
  // If nothing in memory leaves, OnNothingEvicted follows.
  struct ChangeWeights {
    std::shared_ptr<const Plan> after;
    int64_t border = 0;
    bool evicts_embedding = false;
  };
  // While steps go on, parts leave memory; then pages come, and a ring if needed. Then OnRoomMade.
  struct MakeRoom {
    int64_t pages = 0, pages_before = 0;
    Bytes ring = 0;
    bool reads_rows = false;  // the embedding is read by rows from now on
  };
  // While steps go on, gives the parts on demand these places, with StageLogic::SetPlaces: frees the
  // memory of those that leave, and makes memory for those that come. Then OnPlacesSet.
  struct SetPlaces {
    std::vector<PartPlaces> places;
  };
  // For the watch over the memory: Resident has the bytes of evictable weights that are resident,
  // Most the bytes of all evictable weights.
  struct Resident {
    Bytes bytes = 0;
  };
  struct Most {
    Bytes bytes = 0;
  };
  struct Report {
    std::string sentence;
  };
  using Action = std::variant<Prepare, ChangeWeights, MakeRoom, SetPlaces, Resident, Most, Report>;
  using Actions = std::vector<Action>;

  // `programs`: CompileAll of the plan.  REQUIRES: `plan` is valid; it and `book` outlive this
  ResidencyLogic(const Plan& plan, std::vector<Program> programs, KvBook& book, Options options);
  // Steps begin.  REQUIRES: `stage` has programs(), and outlives this object
  void Start(StageLogic& stage) { stage_ = &stage; }

  // ---- The current state

  // For the steps that begin next, by micro-batches, ascending.
  const std::vector<Program>& programs() const { return programs_; }
  StageLogic::Memory memory() const { return {.programs = programs_, .must_begin = MustBegin(), .pages_come = PagesCome()}; }
  // True if residency may change at all.
  bool changes() const { return options_.by_order || options_.shedding.has_value(); }
  // Positions of each sequence that may be away under the current residency.
  int64_t Reach() const { return ReachOf(*residency_); }
  int64_t num_changes() const { return num_changes_; }
  // shed: bytes evicted under pressure, less the memory for reading them; with places that are gone.
  // most: bytes that can be evicted. largest: the largest block of these, or place.
  Bytes shed() const { return shed_.bytes + PlacesGone(); }
  Bytes most() const { return most_; }
  Bytes largest() const;

  // ---- Events

  // Replaces an order that has not begun.
  void OnOrder(const Residency& to, Actions& actions);
  // From now on `resident` bytes of the weights that may be evicted should be in memory.
  void SetTarget(Bytes resident) { target_bytes_ = resident; }
  // Begins a change that waited for held pages, for another target, or for another change.
  void TryChange(Actions& actions);
  // Ends all changes.
  void Stop() { stopped_ = true; }
  bool healthy() const { return stage_->health().ok(); }

  struct Prepared {
    Plan after;
    // For the first step of the change, and for all later ones.
    std::vector<Program> entering, settled;
    bool opened_rows = false;
  };
  // Appends to `of_stage` the actions of the stage that follow. They are to be carried out after
  // `actions`.
  void OnPrepared(Prepared prepared, double now_ms, Actions& actions, StageLogic::Actions& of_stage);
  // `no_rows`: the rows of the embedding could not be opened. A change by order must succeed, else
  // the stage fails. Under pressure less is evicted instead.
  void OnNotPrepared(bool no_rows, const absl::Status& why, Actions& actions, StageLogic::Actions& of_stage);
  void OnNothingEvicted(Actions& actions);
  // From this step on, parts stream as the change says.
  void OnBorder(Actions& actions);
  void OnRoomMade(double now_ms, Actions& actions, StageLogic::Actions& of_stage);
  // The stage has the places of SetPlaces, except those that a visit or a read uses still.
  void OnPlacesSet(Actions& actions);
  void OnStepEnded(Actions& actions);

 private:
  struct Change {
    bool under_way = false;
    bool by_order = false;   // else for pressure only
    int64_t ordered_at = 0;  // steps that had begun when it was ordered
    int64_t pages_before = 0;
    bool begun = false;     // the runner has accepted it
    bool at_work = false;   // room is being made
    bool has_room = false;  // room was made
    WeightsToShed::Choice to_shed;
  };

  bool MustBegin() const;
  bool PagesCome() const;
  bool Idle() const { return !stage_->inbox().step_under_way() && stage_->inbox().NextOrder() == nullptr; }
  const PlanDevice& Device(const Plan& plan) const { return plan.devices[static_cast<size_t>(options_.device)]; }
  int64_t ReachOf(const Plan& plan) const;
  bool IsFree(const Residency& to);
  WeightsToShed::Choice ToShed(const Residency& ordered) const;
  std::vector<PartPlaces> PlacesToKeep() const;
  Bytes PlacesGone() const;
  void TryPlaces(Actions& actions);
  void Begin(Residency ordered, bool by_order, Actions& actions);
  void NoteRing(std::vector<Program>& programs) const;
  void BeginRoom(Actions& actions);
  void ReportResident(Actions& actions);
  void EndChange(Actions& actions);

  const Plan& plan_;
  const Options options_;
  KvBook& book_;
  std::vector<Program> programs_;
  StageLogic* stage_ = nullptr;

  // The plan with the current residency, or that of the current change.
  std::shared_ptr<const Plan> residency_;
  Residency ordered_;                // the ordered one, without evictions
  std::optional<Residency> target_;  // ordered, and not begun
  Change change_;
  std::vector<Program> entering_;  // of the current change
  std::vector<Program> settled_;   // after the current change
  int64_t num_changes_ = 0;
  std::optional<WeightsToShed> to_shed_;        // nothing: no eviction under pressure
  std::optional<PlacesToShed> places_to_shed_;  // nothing: the memory is not watched
  std::vector<PartPlaces> places_;              // of the last SetPlaces, or as planned
  bool sets_places_ = false;                    // OnPlacesSet follows
  Bytes places_gone_ = 0;                       // as reported last
  Bytes most_ = 0;                              // bytes that can be evicted
  // How many bytes should be resident; nothing: the memory is not watched yet.
  std::optional<Bytes> target_bytes_;
  WeightsToShed::Choice shed_;  // with the current change
  bool has_rows_ = false, reads_rows_ = false;
  bool stopped_ = false;
};

}  // namespace lime
