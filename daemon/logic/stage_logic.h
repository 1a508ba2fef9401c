// Decides what one device of a pipeline does next. It carries out orders one after another, begins
// steps with their Programs, passes on messages of peers, and ends loads in order. Pure: events in,
// actions out. The driver (StageEngine, or the simulated cluster in tests/sim) has the threads,
// buffers, backend and clock.
//
//   orders, activations, tokens ─► StageInbox ─┐
//   loads, computations, answers ──────────────┼──► ProgramRunner ──► actions, carried out in order
//   steps, sequences ──► KvBook ◄──────────────┘
//
// The driver reports an event, carries out the actions that StageLogic appends, and then takes
// orders one by one, as long as HasOrder says so. So the changes that an order makes to memory
// (StageKv, StageResidency) are done before the next order is looked at.
//
// Thread: the driver's, under its lock. Events of a step allocate nothing, except for early input.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <variant>
#include <vector>

#include "common/activation.h"
#include "common/order.h"
#include "daemon/logic/demand/demand_cache.h"
#include "daemon/logic/kv_book.h"
#include "daemon/logic/neuron_window/sparse_visits.h"
#include "daemon/logic/stage_inbox.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"
#include "planner/program/program_runner.h"

namespace lime {

// A unit of a part on demand, and the place that it is in. Of a sparse part: a neuron and its row of
// memory, or a piece and its place.
struct UnitInPlace {
  int32_t unit = 0;
  int32_t place = 0;
  friend bool operator==(const UnitInPlace&, const UnitInPlace&) = default;
};

class StageLogic {
 public:
  static constexpr int kLoadsUnderWay = 2;  // the disk has the next load before the last one ends

  // ---- Actions in addition to the runner's

  // A sequence has taken its slot. The order is valid until the next OnOrder.
  struct Admitted {
    const AdmitOrder* order = nullptr;
  };
  // A sequence has left its slot.
  struct Retired {
    int32_t sequence = 0;
  };
  // A sequence has gone back: its next row is at `positions`.
  struct RolledBack {
    int32_t sequence = 0;
    int64_t positions = 0;
  };
  // Residency is to change. The order is valid until the next OnOrder.
  struct ChangeResidency {
    const ResidencyOrder* order = nullptr;
  };
  // A step has begun here, with this number of computations.
  struct StepBegun {
    int32_t computes = 0;
  };
  // Reads a unit of a part on demand into one of the part's places. Its answer is OnUnitRead.
  struct StartUnitRead {
    int64_t number = 0;
    int32_t part = 0;
    int32_t unit = 0;  // of the part
    int32_t place = 0;
    bool ahead = false;  // no computation needs it yet
  };
  // A unit that is read ahead is to be read no further, if the disk can stop it. Its answer is
  // OnUnitRead in any case.
  struct CancelUnitRead {
    int64_t number = 0;
  };
  // The memory of some places may be freed: nothing reads into them or computes with them, and no unit
  // will be read into them until SetPlaces names them again.
  struct FreePlace {
    int32_t part = 0;
    int32_t place = 0;
    int32_t count = 1;  // places from this one on
  };
  // Reads neurons of a sparse part into its rows of memory. Each has its answer OnNeuronsRead. The span
  // is valid until the next event.
  struct StartNeuronReads {
    int32_t part = 0;
    std::span<const NeuronWindow::Load> loads;
  };
  // Reads a piece of a sparse part into one of the places for pieces. Its answer is OnPieceRead.
  struct StartPieceRead {
    int32_t part = 0;
    int32_t piece = 0;
    int32_t place = 0;
  };
  // Computes units that are in memory. They are valid until the next OnComputed.
  struct StartUnits {
    int64_t step = 0;
    ComputeUnits what;
    std::span<const UnitInPlace> units;
  };
  // A unit that another device has asked for is in memory, and stays there until OnHostedComputed.
  struct HostedReady {
    int32_t part = 0;
    UnitInPlace unit;
  };
  // The device has stopped for good. This is the last action.
  struct Failed {
    absl::Status why;
  };
  // A StartSend of tokens to this device itself is done already; the driver tells the coordinator.
  // StartUnits takes the place of a StartComputeUnits.
  using Action = ProgramRunner::ActionOr<Admitted, Retired, RolledBack, ChangeResidency, StepBegun, StartUnitRead, CancelUnitRead,
                                         FreePlace, StartNeuronReads, StartPieceRead, StartUnits, HostedReady, Failed>;
  using Actions = std::vector<Action>;

  // `programs`: of the plan as it is now, by micro-batches, ascending. REQUIRES: `plan` is valid.
  // It, `book` and the programs outlive this object, the programs as ProgramRunner says
  StageLogic(const Plan& plan, int32_t device, const StageInbox::Shape& shape, const std::vector<Program>& programs, KvBook& book);

  // ---- Events. Each appends actions; none if the device has stopped

  // Loads begin. Called once, before anything else.
  void Start(Actions& actions);

  // The next order. InvalidArgument if its number is not the next one, or if it names something
  // that does not exist; nothing has changed then.
  absl::Status OnOrder(const Order& order);
  // Takes an activation from a peer. InvalidArgument if it does not belong to this plan and step,
  // ResourceExhausted if too much waits; nothing has changed then.
  absl::Status OnActivation(ActivationMessage activation, double now_ms, Actions& actions);
  // The current computation has ended. `sampled`: its tokens if it was the plan's last.
  void OnComputed(std::span<const SampledToken> sampled, double now_ms, Actions& actions);
  // A load has ended. Loads may end in any order.
  void OnLoaded(int64_t load, double now_ms, Actions& actions);
  // KV on the host has been asked for, and the answer is here.
  void OnKvArrived(int32_t part, int32_t microbatch, double now_ms, Actions& actions);
  // The answer to StartAskUnits: the units of the part that the micro-batch has chosen, ascending.
  void OnUnitsChosen(int32_t part, int32_t microbatch, std::span<const int32_t> units, double now_ms, Actions& actions);
  // The answer to StartAskUnits of a sparse part for a micro-batch of many rows: it computes all rows of
  // the part, in so many pieces. The driver copies neuron_copies() from them.
  void OnPiecesChosen(int32_t part, int32_t microbatch, int32_t pieces, const SparseVisits::LastMasks& last, double now_ms,
                      Actions& actions);
  // Neurons of StartNeuronReads, or a piece, have been read and checked. An error stops the device.
  void OnNeuronsRead(std::span<const int32_t> neurons, const absl::Status& result, double now_ms, Actions& actions);
  void OnPieceRead(int32_t piece, const absl::Status& result, double now_ms, Actions& actions);
  // The host of a part's units has sent all results.
  void OnHostAnswered(int32_t part, int32_t microbatch, double now_ms, Actions& actions);
  // Another device needs units of a part whose host this device is, ascending, for so many rows.
  // `decodes`: no two rows are of one sequence. InvalidArgument while the part's last units are
  // needed. REQUIRES: `units` are not empty
  absl::Status OnUnitsAsked(int32_t part, std::span<const int32_t> units, int32_t rows, bool decodes, double now_ms, Actions& actions);
  // These units of HostedReady are computed.
  void OnHostedComputed(int32_t part, std::span<const UnitInPlace> units, double now_ms, Actions& actions);
  // The units that this part will probably choose in the current step, the likeliest first. They are
  // read while the disk has nothing else to do.  REQUIRES: the part is on demand
  void OnUnitsGuessed(int32_t part, std::span<const int32_t> units, Actions& actions);
  // A read of a unit has ended. Reads may end in any order. One that fails twice stops the device,
  // and so does one that was cancelled without a CancelUnitRead.
  void OnUnitRead(int64_t number, const absl::Status& result, double now_ms, Actions& actions);
  // From now on the part has this many places, as DemandCache::SetPlaces and SparseVisits::SetRows say:
  // with fewer, returns the places whose memory may be freed now; FreePlace names the others later. With
  // more, returns the places that get their memory again, which units may be read into at once. Ascending
  // for neurons. Valid until the next call.  REQUIRES: the part is on demand
  std::span<const int32_t> SetPlaces(int32_t part, int32_t places);
  // From a later step on, other parts stream (ProgramRunner::Change). InvalidArgument while an
  // earlier change is not settled.
  absl::Status OnChange(const std::vector<Program>& entering, const std::vector<Program>& settled, double now_ms, Actions& actions);
  void OnRoomMade(double now_ms, Actions& actions);
  // The driver could not do something. The device stops for good.
  void Fail(const absl::Status& why, Actions& actions);
  // The device stops, and nobody has to hear of it.
  void Stop(const absl::Status& why) { health_.Update(why); }

  // ---- Orders, one after another, between two steps

  // Waiting orders may be tried again: pages may be free.
  void MayTryOrders() { may_try_orders_ = true; }
  // True if an order can be tried now.
  bool HasOrder() const { return may_try_orders_ && health_.ok() && inbox_.NextOrder() != nullptr && !inbox_.step_under_way(); }
  // The state of the device's memory, which the driver knows.
  struct Memory {
    const std::vector<Program>& programs;  // for the next steps, as many as there were
    bool must_begin = false;               // the next step waits for a change to begin
    bool pages_come = false;               // a change brings pages, whatever the next step does
  };
  // Carries out the next order, or fails. If it must wait for MayTryOrders, appends nothing.
  // REQUIRES: HasOrder()
  void NextOrder(const Memory& memory, double now_ms, Actions& actions);

  // ---- The current state

  StageInbox& inbox() { return inbox_; }
  const StageInbox& inbox() const { return inbox_; }
  const ProgramRunner& runner() const { return runner_; }
  const absl::Status& health() const { return health_; }  // not ok: stopped for good
  // Of the parts on demand here, in order; null if there are none.
  const DemandCache* units() const { return cache_.get(); }
  // Places of a part on demand that have memory.
  int32_t NumPlaces(int32_t part) const {
    return IsSparse(part) ? sparse_->num_rows(SparseIndexOf(part)) : cache_->num_places(LayerOf(part));
  }
  // Chosen units of all of them, since the start; of micro-batches that decode, or of all.
  struct UnitUses {
    int64_t hits = 0;    // they were in memory
    int64_t misses = 0;  // they had to be read, or were still being read
  };
  // Units that were read ahead, since the start.
  struct AheadUses {
    int64_t suggested = 0;  // units that were guessed, and that were not in memory
    int64_t read = 0;
    int64_t used = 0;  // of those that were read: chosen before they left
    Bytes wasted = 0;  // of the others that were read
  };
  AheadUses units_ahead() const;
  // As SparseVisits::copies, after OnPiecesChosen.
  std::span<const NeuronWindow::Load> neuron_copies() const { return sparse_->copies(); }
  // Neurons of all sparse parts, since the start.
  SparseVisits::Counts neurons() const;
  const UnitUses& decode_units() const { return decode_units_; }
  const UnitUses& all_units() const { return all_units_; }

 private:
  using Visit = StageInbox::Visit;

  bool IsFirst() const { return plan_.stages.front().device == device_; }
  bool HasPagesFor(const Order& order, const Memory& memory, Actions& actions);
  void Execute(const AdmitOrder& admit, const Memory& memory, double now_ms, Actions& actions);
  void Execute(const RetireOrder& retire, const Memory& memory, double now_ms, Actions& actions);
  void Execute(const RollbackOrder& back, const Memory& memory, double now_ms, Actions& actions);
  void Execute(const ResidencyOrder& order, const Memory& memory, double now_ms, Actions& actions);
  void Execute(StepOrder& order, const Memory& memory, double now_ms, Actions& actions);
  void PostArrived(const Visit& visit, double now_ms, Actions& actions);
  void PostTokens(double now_ms, Actions& actions);

  void OpenCache();
  void OpenSparse();
  int32_t LayerOf(int32_t part) const;
  absl::Status BeginUnits(int32_t part, std::span<const int32_t> units, int32_t rows, bool decodes);
  void CancelUnitReads(Actions& actions);
  void StartUnitReads(Actions& actions);
  void FreePlaces(Actions& actions);
  void NoteLoads(int64_t more, Actions& actions);
  void PostReady(double now_ms, Actions& actions);
  bool IsSparse(int32_t part) const { return std::ranges::binary_search(sparse_parts_, part); }
  int32_t SparseIndexOf(int32_t part) const;
  void StartSparseReads(Actions& actions);
  void GoOnWithSparse(double now_ms, Actions& actions);
  void PostHostedReady(Actions& actions);

  void Post(const ProgramRunner::Event& event, double now_ms, Actions& actions);
  void Follow(const std::vector<ProgramRunner::Action>& followed, double now_ms, Actions& actions);
  template <typename Typed>
  void On(const Typed& action, double now_ms, Actions& actions);

  const Plan& plan_;
  const int32_t device_;
  const bool pages_come_;  // pages come as sequences grow; else all at once
  KvBook& book_;
  StageInbox inbox_;
  ProgramRunner runner_;
  // Empty, with memory for the actions of an event.
  std::vector<std::vector<ProgramRunner::Action>> spare_;
  std::span<const SampledToken> sampled_;  // of the current event
  int64_t next_loaded_ = 0;
  std::set<int64_t> loaded_;  // loads that ended before an older one
  int64_t loads_ = 0;         // under way
  bool may_try_orders_ = false;
  absl::Status health_;

  // Parts on demand: their cache, in which each is a layer; the micro-batch that has chosen units
  // and their part; units that are in memory and not computed, and those that are being computed.
  std::unique_ptr<DemandCache> cache_;
  std::vector<int32_t> parts_on_demand_;
  std::vector<int32_t> hosted_parts_;  // of other devices' stages
  AskUnits asked_{.part = -1};
  std::unique_ptr<SparseVisits> sparse_;  // of the sparse parts, in order; null: there are none
  std::vector<int32_t> sparse_parts_;
  std::vector<int32_t> rows_set_;  // of SetPlaces for a sparse part
  std::vector<UnitInPlace> ready_, running_;
  UnitUses decode_units_, all_units_;
};

}  // namespace lime
