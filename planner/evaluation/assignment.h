// A plan as the searches store it: each block's device and whether it streams, and the embedding.
// Neighbouring blocks on one device form a stage. Every plan is one assignment, and every
// assignment a plan (if the first device can read rows when embedding_by_rows is set).
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "planner/plan/instance/instance.h"
#include "planner/plan/instance/stage_plan.h"

namespace lime {

struct Assignment {
  std::vector<int16_t> device;    // by block
  std::vector<uint8_t> streamed;  // by block
  bool embedding_by_rows = false;

  friend bool operator==(const Assignment&, const Assignment&) = default;
};

// Where a stage may begin.
enum class Granularity {
  kBlock,  // at any block
  kLayer,  // at the first block of a layer; the head counts as a layer
  // At the first part of a model block, and at any part of the head. A head on several devices is
  // split by vocabulary, and its partial result travels with the hidden state.
  kModelBlock,
  kWholeBlock,  // at the first part of a model block; the head stays on one device
};

// The cost of moving blocks away from the plan in use.
struct MoveCost {
  std::vector<int16_t> home;  // by block: the device that holds it
  // Added to the ms per step for every MB of weights and KV that moves. Infinity: nothing may move.
  double ms_per_mb = 0;

  bool MayMove() const { return !std::isinf(ms_per_mb); }
  double Of(const Instance::Block& block) const { return MayMove() ? (block.mb + block.kv_mb) * ms_per_mb : ms_per_mb; }
};

// Everything on one device, in memory.
Assignment AllOn(const Instance& instance, int device);

Assignment ToAssignment(const StagePlan& plan, int num_blocks);
StagePlan ToPlan(const Assignment& assignment);
std::vector<Stage> StagesOf(const Assignment& assignment);

// First blocks of the units that stay together, then the number of blocks. Unit u is [result[u],
// result[u + 1]).
std::vector<int32_t> UnitBegins(const Instance& instance, Granularity granularity);

}  // namespace lime
