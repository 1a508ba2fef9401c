// What the coordinator tells every device of a plan, in one order for all: who joins, who leaves, what each step holds.
//
// Pure data. Devices carry orders out in the order of their numbers, so that all of them know the same sequences at the same step; nothing
// of it is on a token's way, since orders are sent ahead.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "planner/plan/micro_batch.h"
#include "planner/plan/plan_residency.h"

namespace lime {

// In the place of a BatchRow's token: the one that was sampled last for its sequence.
inline constexpr int32_t kSampledToken = -1;

// A sequence takes a slot: every device reserves its KV pages for it, or where KV grows as it goes on the first of them.
struct AdmitOrder {
  int32_t sequence = 0;   // slot
  int64_t request = 0;    // by which the coordinator knows it
  int64_t positions = 0;  // prompt and generated tokens together
  std::vector<int32_t> prompt;
  int64_t computed = 0;  // positions, from the first on, of which every device has taken KV over from the plan before

  friend bool operator==(const AdmitOrder&, const AdmitOrder&) = default;
};

// A sequence that goes on under another plan: its slot in the plan before and in this one, and the positions, from the first on, of which
// there is KV.
struct KvSequence {
  int32_t from = 0, to = 0;
  int64_t positions = 0;

  friend bool operator==(const KvSequence&, const KvSequence&) = default;
};

// A sequence leaves its slot after the steps ordered before.
struct RetireOrder {
  int32_t sequence = 0;

  friend bool operator==(const RetireOrder&, const RetireOrder&) = default;
};

// One step of the pipeline: its micro-batches, prompt chunks and decode tokens alike. A row of a token that is not known yet says
// kSampledToken, and waits for it at the first stage.
struct StepOrder {
  std::vector<MicroBatch> microbatches;

  friend bool operator==(const StepOrder&, const StepOrder&) = default;
};

// What streams and how many KV pages there are changes, on each device for its own parts: pages come once parts have left memory, parts
// that come stay when they are read next. Steps go on meanwhile. A change is carried out within kResidencyLead steps; while it is, others
// wait, and of those the last counts: so pages are there 2 kResidencyLead steps after their order. A step that needs them before may fail.
struct ResidencyOrder {
  Residency to;

  friend bool operator==(const ResidencyOrder&, const ResidencyOrder&) = default;
};
// Two while a device prepares, and those that it has read ahead for: a ring holds 4 q + 4 loads at most where a step has q
// (planner/compile.cc), of at most 8 steps.
inline constexpr int64_t kResidencySteps = 2;
inline constexpr int64_t kResidencyLead = 12;

struct Order {
  int64_t number = 0;  // from 0 in every epoch, without gaps
  std::variant<AdmitOrder, RetireOrder, StepOrder, ResidencyOrder> what;

  friend bool operator==(const Order&, const Order&) = default;
};

}  // namespace lime
