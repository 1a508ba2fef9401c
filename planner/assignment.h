// A plan as the searches hold it: for every block its device and whether it streams, and the embedding. Neighbours on one device are one
// stage, so every assignment is a plan (where its first device can read rows, if it is to) and every plan one assignment.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "planner/plan/instance.h"
#include "planner/plan/stage_plan.h"

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
  kLayer,  // at the first block of a layer; a head is a layer of its own
  // At the first piece of a model block, and at any piece of the head: a head on several devices is split by vocabulary, and what they
  // found best travels on with the hidden state.
  kModelBlock,
  kWholeBlock,  // at the first piece of a model block: a head stays on one device
};

// What a plan costs beside its time where another plan is in force: the blocks that have to travel.
struct MoveCost {
  std::vector<int16_t> home;  // by block: the device that holds it
  double ms_per_mb = 0;       // added to the ms per step for every MB of weights and KV elsewhere; infinity: nothing may move

  bool MayMove() const { return !std::isinf(ms_per_mb); }
  double Of(const Instance::Block& block) const { return MayMove() ? (block.mb + block.kv_mb) * ms_per_mb : ms_per_mb; }
};

Assignment ToAssignment(const StagePlan& plan, int num_blocks);
StagePlan ToPlan(const Assignment& assignment);
std::vector<Stage> StagesOf(const Assignment& assignment);

// First blocks of the units that stay on one device, and the number of blocks behind them: unit u is [result[u], result[u + 1]).
std::vector<int32_t> UnitBegins(const Instance& instance, Granularity granularity);

}  // namespace lime
