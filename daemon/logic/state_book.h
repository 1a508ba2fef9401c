// Which positions the states of a device's slots stand at, and their snapshots. A state has taken every
// position of its sequence once, in order; it cannot be cut, but a copy of it can go on. In a model
// without states, a snapshot has the pages that layers with a window need to go on.
//
//   StepOrder: rows with a snapshot ──► the position of the snapshot
//   AdmitOrder: the state begins as zeros, goes on in its slot, or is a copy of a snapshot
//   RollbackOrder: the state is a copy of a snapshot of its slot
//
// The orders alone decide, so all devices of a plan have the same positions.
//
// Pure, and allocates nothing after its construction.   Thread: the owner's.   Owner: KvBook.
// Invariant: a snapshot has no more positions than the KV of its slot.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "common/order.h"
#include "planner/base/status.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_rows.h"

namespace lime {

class StateBook {
 public:
  // REQUIRES: `plan` is valid
  explicit StateBook(const Plan& plan)
      : has_states_(HasState(plan)),
        has_window_(WindowOf(plan).positions > 0),
        snapshots_(plan.state_snapshots),
        slots_(has_states_ || snapshots_ > 0 ? static_cast<size_t>(plan.sequences) : 0,
               Slot{.snapshots = std::vector<int64_t>(static_cast<size_t>(snapshots_))}) {}

  // A snapshot is to be copied to the states or pages of a slot.
  struct Restore {
    int32_t from = 0;  // slot
    int32_t snapshot = 0;
    int32_t to = 0;  // slot
    int64_t positions = 0;
    friend bool operator==(const Restore&, const Restore&) = default;
  };

  // Takes over the states and snapshots of a sequence of the previous plan. InvalidArgument if the plan
  // does not have so many.
  absl::Status TakeOver(const KvSequence& sequence) {
    const std::vector<int64_t>& states = sequence.states;
    if (!states.empty() && (!has_states_ || std::ssize(states) > 1 + snapshots_))
      return Invalid("slot ", sequence.to, " is to take over states and ", states.size() - 1, " snapshots, but the plan has ",
                     has_states_ ? snapshots_ : 0);
    if (states.empty()) return absl::OkStatus();
    Slot& slot = At(sequence.to);
    slot.positions = states.front();
    std::copy(states.begin() + 1, states.end(), slot.snapshots.begin());
    return absl::OkStatus();
  }

  // A sequence takes a slot. InvalidArgument, and nothing changes, if the states of its computed
  // positions are not where the order says.
  absl::Status Begin(const AdmitOrder& admit) {
    if (slots_.empty()) return CheckNone(admit);
    LIME_RETURN_IF_ERROR(Check(admit));
    Slot& slot = At(admit.sequence);
    if (admit.snapshot >= 0)
      restore_ = {.from = From(admit), .snapshot = admit.snapshot, .to = admit.sequence, .positions = admit.computed};
    Cut(admit.sequence, admit.source >= 0 ? 0 : admit.computed);
    slot.positions = admit.computed;
    return absl::OkStatus();
  }

  // These rows are computed next. InvalidArgument if a row does not follow its state, or if a snapshot
  // of pages would not be of whole ones.
  absl::Status Begin(const StepOrder& step) {
    if (slots_.empty()) return absl::OkStatus();
    for (const MicroBatch& batch : step.microbatches) {
      for (const BatchRow& row : batch.rows) LIME_RETURN_IF_ERROR(Add(row));
    }
    return absl::OkStatus();
  }

  // A sequence goes back to the position of a snapshot of its slot; without states to any position,
  // without a snapshot. InvalidArgument, and nothing changes, if the snapshot has another position.
  absl::Status RollBack(const RollbackOrder& back) {
    LIME_RETURN_IF_ERROR(Check(back));
    if (slots_.empty()) return absl::OkStatus();
    if (has_states_) restore_ = {.from = back.sequence, .snapshot = back.snapshot, .to = back.sequence, .positions = back.positions};
    Cut(back.sequence, back.positions);
    At(back.sequence).positions = back.positions;
    return absl::OkStatus();
  }

  // The sequence of a slot has ended, and KV of its first `positions` positions stays.
  void Keep(int32_t sequence, int64_t positions) {
    if (slots_.empty()) return;
    Cut(sequence, positions);
    At(sequence).positions = 0;
  }

  // The next copy to carry out, before any row is computed. Nothing if there is none.
  std::optional<Restore> NextRestore() { return std::exchange(restore_, std::nullopt); }

  // The positions of a snapshot; 0: there is none.
  int64_t snapshot(int32_t sequence, int32_t snapshot) const {
    return slots_[static_cast<size_t>(sequence)].snapshots[static_cast<size_t>(snapshot)];
  }

 private:
  struct Slot {
    int64_t positions = 0;           // that the states have
    std::vector<int64_t> snapshots;  // positions of each; 0: there is none
  };

  Slot& At(int32_t sequence) { return slots_[static_cast<size_t>(sequence)]; }
  static int32_t From(const AdmitOrder& admit) { return admit.source >= 0 ? admit.source : admit.sequence; }

  // Of a snapshot that an order names; 0: there is none.
  int64_t PositionsOf(int32_t sequence, int32_t named) const { return named >= 0 && named < snapshots_ ? snapshot(sequence, named) : 0; }

  static absl::Status CheckNone(const AdmitOrder& admit) {
    if (admit.snapshot < 0) return absl::OkStatus();
    return Invalid("slot ", admit.sequence, " is to begin with a snapshot, but the plan has none");
  }

  absl::Status Check(const AdmitOrder& admit) const {
    const int32_t from = From(admit);
    const Slot& slot = slots_[static_cast<size_t>(from)];
    const bool begins = admit.computed == 0 && admit.snapshot < 0;
    const bool goes_on = admit.snapshot < 0 && (!has_states_ || (admit.source < 0 && slot.positions == admit.computed));
    if (begins || goes_on) return absl::OkStatus();
    const int64_t there = PositionsOf(from, admit.snapshot);
    if (there > 0 && there == admit.computed) return absl::OkStatus();
    return Invalid("slot ", admit.sequence, " is to begin with states of ", admit.computed, " positions, but snapshot ", admit.snapshot,
                   " of slot ", from, " has ", there);
  }

  absl::Status Check(const RollbackOrder& back) const {
    if (!has_states_) {
      if (back.snapshot < 0) return absl::OkStatus();
      return Invalid("slot ", back.sequence, " is to go back to a snapshot, but the model has no state");
    }
    const int64_t there = PositionsOf(back.sequence, back.snapshot);
    if (there > 0 && there == back.positions) return absl::OkStatus();
    return Invalid("slot ", back.sequence, " is to go back to states of ", back.positions, " positions, but snapshot ", back.snapshot,
                   " of it has ", there);
  }

  absl::Status Add(const BatchRow& row) {
    Slot& slot = At(row.sequence);
    if (has_states_ && row.position != 0 && row.position != slot.positions)
      return Invalid("the states of slot ", row.sequence, " have ", slot.positions, " positions, the row is at ", row.position);
    slot.positions = int64_t{row.position} + 1;
    if (has_window_ && row.snapshot >= 0 && slot.positions % kPageTokens != 0)
      return Invalid("a snapshot of slot ", row.sequence, " is to have ", slot.positions, " positions, not whole pages of ", kPageTokens);
    if (row.snapshot >= 0) slot.snapshots[static_cast<size_t>(row.snapshot)] = slot.positions;
    return absl::OkStatus();
  }

  // Snapshots of more positions are of no use without their KV.
  void Cut(int32_t sequence, int64_t positions) {
    for (int64_t& each : At(sequence).snapshots) each = each > positions ? 0 : each;
  }

  const bool has_states_, has_window_;
  const int32_t snapshots_;
  std::vector<Slot> slots_;
  std::optional<Restore> restore_;
};

}  // namespace lime
