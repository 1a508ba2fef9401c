// Plans one device alone: which parts are resident, and the size of the ring for the others.
//
// A fixed resident set is the best cache for a sweep that repeats with every token
// (docs/internals/algorithms.md, section 1). This tries a few ways to spread the streamed parts and
// a few ring sizes, and takes the fastest by the exact evaluation. It uses no randomness and no
// clock: equal problems give equal plans.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/problem/plan_problem.h"

namespace lime {

// Which blocks stay in memory if not all fit (Layer-Streaming, section 3.3).
enum class Placement : uint8_t {
  kAuto,            // the fastest choice, except kAttentionFirst
  kFirstN,          // the first ones in order of use
  kLastN,           // the last ones
  kInterleaved,     // spread evenly
  kAttentionFirst,  // the attention halves in order of use, then the other blocks (section 5.2)
};
// "auto", "first_n", "last_n", "interleaved" or "attention_first".
absl::StatusOr<Placement> ParsePlacement(std::string_view name);

struct OneDeviceRequest {
  Placement placement = Placement::kAuto;
  std::optional<Bytes> ring;  // fixed size of the ring if parts stream; else chosen
  // Fixed limit for the resident share of the weights, 0 to 1; else as much as fits.
  std::optional<double> share;
  Bytes rows = 0;              // more activations, if embedding rows are read
  Bytes streaming_margin = 0;  // more margin, if parts stream
  // If KV grows: the problem's model, whose KV may go to the disk; null: all of it stays in memory.
  const ModelSpec* spills = nullptr;
};

// Parts on demand never stream. Their places are as fixed as KV. All other parts and the embedding
// are resident if they fit. Else embedding rows are read from disk.
// Else parts stream as well. The ring has the chosen size, and the margin gets the rest.
// ResourceExhausted with the numbers if the smallest ring, or the requested one, does not fit next
// to the pinned memory. The budget is that of problem.head; memory in its instances is ignored.
//
// If KV grows (problem.head has the KV of the first level), parts may stream later. The ring then
// exists from the start, with the size that is fastest on average over all levels
// (planner/kv/kv_levels.h). ResourceExhausted also if no ring reaches the whole context. With
// `spills`, the disk takes the pages for which memory has no room even if everything streams, or
// more pages if that is faster (planner/kv/kv_growth.h).
//
// REQUIRES: one device; one batch size, with all sequences; all KV is kept; if KV grows,
// `request` has no placement, ring or share
absl::StatusOr<Plan> PlanOneDevice(const PlanProblem& problem, const OneDeviceRequest& request);

// Memory of the device if every part that may stream does, through the smallest ring, of one part. `activations`
// includes the size of another part, which the ring may leave unused at its end. The margin is the
// problem's.
PlanMemory LeastMemory(const PlanProblem& problem, const OneDeviceRequest& request);

// Milliseconds per step of a plan for one device if its disk had this rate. Reads on demand that are
// waited for change by the same factor.
double MsPerStepAt(const Plan& plan, double disk_bytes_per_second);

}  // namespace lime
