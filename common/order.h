// The coordinator's orders to every device of a plan, in one sequence for all: requests that join,
// leave or go back, and the content of each step.
//
// Pure data. Devices execute orders by their number, so all of them have the same sequences at the
// same step. Orders are sent ahead and add no delay to a token.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "planner/plan/micro_batch.h"
#include "planner/plan/plan_residency.h"

namespace lime {

// Replaces a BatchRow's token: the latest token sampled for its sequence.
inline constexpr int32_t kSampledToken = -1;

// A sequence takes a slot. Every device reserves its KV pages, or only the first ones if KV grows.
struct AdmitOrder {
  int32_t sequence = 0;   // slot
  int64_t request = 0;    // the coordinator's number for it
  int64_t positions = 0;  // prompt and generated tokens together
  std::vector<int32_t> prompt;
  // First positions whose KV every device has: in the slot `source`, whose pages are copied; or, if
  // `source` is -1, in this slot, which kept them or took them over from the plan before.
  int64_t computed = 0;
  int32_t source = -1;
  // If the model has a state: the snapshot of the slot with this KV that has `computed` positions. The
  // sequence's states begin as copies of it. -1: with `computed` 0 the states begin as zeros, else they
  // are in this slot. Likewise for layers that give pages back; -1: the slot with this KV still has them.
  int32_t snapshot = -1;
  // The last ids of `prompt`, generated under an earlier plan. Penalties and masks count them.
  int64_t generated = 0;

  friend bool operator==(const AdmitOrder&, const AdmitOrder&) = default;
};

// A sequence that continues under another plan: its old and new slot, and the number of first
// positions with KV.
struct KvSequence {
  int32_t from = 0, to = 0;
  int64_t positions = 0;
  // If the model has a state: the positions of the slot's states, and of its snapshots. 0: they do not
  // continue. Empty if none do.
  std::vector<int64_t> states = {};

  friend bool operator==(const KvSequence&, const KvSequence&) = default;
};

// A sequence leaves its slot after all steps ordered before. The KV of its first `kept` positions
// may stay, for later sequences: the slot is idle then, until a sequence takes it or another
// RetireOrder frees it. Its snapshots of no more positions stay, too.
struct RetireOrder {
  int32_t sequence = 0;
  int64_t kept = 0;

  friend bool operator==(const RetireOrder&, const RetireOrder&) = default;
};

// A running sequence goes back, behind all steps ordered before: only its first `positions` positions
// count, and its next row is at `positions`. Tokens sampled for later positions count no more. It
// keeps its pages: the next rows write them again. So rows of a guess that was wrong leave nothing. If
// a token behind that position was sampled, the next row names its own token.
struct RollbackOrder {
  int32_t sequence = 0;
  int64_t positions = 0;  // at least 1
  // If the model has a state: the snapshot of the slot with as many positions. -1: it has none.
  int32_t snapshot = -1;

  friend bool operator==(const RollbackOrder&, const RollbackOrder&) = default;
};

// One step of the pipeline: its micro-batches of prompt chunks and decode tokens. A row with
// kSampledToken waits at the first stage for its token.
struct StepOrder {
  std::vector<MicroBatch> microbatches;

  friend bool operator==(const StepOrder&, const StepOrder&) = default;
};

// Changes the streamed parts and the number of KV pages, on each device for its own parts. New
// pages appear after parts have left memory. Parts become resident when they are read next. Steps
// continue. A change takes at most kResidencyLead steps. Further changes wait for its end, and only
// the last of them counts. Pages are therefore ready 2 kResidencyLead steps after their order; a
// step that needs them earlier may fail.
struct ResidencyOrder {
  Residency to;

  friend bool operator==(const ResidencyOrder&, const ResidencyOrder&) = default;
};
// Steps of preparation (kResidencySteps), and the limit for a whole change (kResidencyLead). The
// limit includes the steps for which a device has read ahead: a ring holds at most 4 q + 4 loads
// with q loads per step (planner/program/compile.cc), so it holds the loads of at most 8 steps.
inline constexpr int64_t kResidencySteps = 2;
inline constexpr int64_t kResidencyLead = 12;

struct Order {
  int64_t number = 0;  // from 0 in every epoch, without gaps
  std::variant<AdmitOrder, RetireOrder, StepOrder, ResidencyOrder, RollbackOrder> what;

  friend bool operator==(const Order&, const Order&) = default;
};

}  // namespace lime
