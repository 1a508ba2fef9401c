// What a plan costs beside its time where another plan is in force: the blocks that have to travel.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "planner/plan/instance.h"

namespace lime {

struct MoveCost {
  std::vector<int16_t> home;  // by block: the device that holds it
  double ms_per_mb = 0;       // added to the ms per step for every MB of weights and KV elsewhere; infinity: nothing may move

  bool MayMove() const { return !std::isinf(ms_per_mb); }
  double Of(const Instance::Block& block) const { return MayMove() ? (block.mb + block.kv_mb) * ms_per_mb : ms_per_mb; }
};

}  // namespace lime
