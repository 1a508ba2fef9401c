// A plan for one device alone: which parts of a model stay in its memory, and how large the ring for the others is.
//
// A fixed resident set is the right cache for a sweep that begins anew with every token (algorithms.md, section 1). What streams is spread
// over the model in a few ways, beside rings of a few sizes, and the exact evaluation says which is fastest. Nothing here is random or
// looks at a clock: equal problems have equal plans.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan_problem.h"

namespace lime {

// Which blocks of a model stay in memory where not all can (Layer-Streaming, section 3.3).
enum class Placement : uint8_t {
  kAuto,         // whatever is fastest
  kFirstN,       // the first ones, in order of use
  kLastN,        // the last ones
  kInterleaved,  // evenly spread
};
absl::StatusOr<Placement> ParsePlacement(std::string_view name);  // "auto", "first_n", "last_n", "interleaved"

struct OneDeviceRequest {
  Placement placement = Placement::kAuto;
  std::optional<Bytes> ring;          // as asked for, where something streams; else chosen
  std::optional<double> share;        // of the weights that stay at most, 0 to 1, as asked for; else as much as fits
  Bytes rows = 0;                     // of activations beside the problem's, where rows of the embedding are read
  Bytes streaming_margin = 0;         // of margin beside the problem's, where parts stream
  const ModelSpec* spills = nullptr;  // where KV grows: the problem's model, whose KV goes on to the disk; null: all of it stays in memory
};

// Everything stays where there is room for it. Else all parts do, and rows of the embedding are read; else parts stream. The ring is as
// large as was chosen, and the margin has what is left. ResourceExhausted, with the numbers, where a ring of the least size, or as asked
// for, does not fit beside what stays in any case. The budget is that of problem.head; what its instances say of memory does not matter.
//
// Where KV grows (problem.head has that of the first level) parts may have to stream later, so there is a ring from the start, of the size
// that is fastest on average over all levels (planner/kv_levels.h); ResourceExhausted also where no ring leads on to the whole context.
// With `spills` the disk takes the pages that memory has no room for whatever streams, or more where that is faster (planner/kv_growth.h).
//
// REQUIRES: one device, one size of micro-batches, that has all sequences; no KV is evicted; where it grows, `request` asks for no
// placement, ring or share
absl::StatusOr<Plan> PlanOneDevice(const PlanProblem& problem, const OneDeviceRequest& request);

// What the device takes where all that can streams, through the smallest ring: one part, and as activations the room for another, which
// the ring may leave unused at its end. Its margin is the problem's.
PlanMemory LeastMemory(const PlanProblem& problem, const OneDeviceRequest& request);

// Milliseconds of a step of a plan for one device, were its disk to deliver so much.
double MsPerStepAt(const Plan& plan, double disk_bytes_per_second);

}  // namespace lime
