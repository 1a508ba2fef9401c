#include "planner/plan/plan_blocks.h"

#include <algorithm>

namespace lime {

std::vector<BlockId> BlocksOn(const Plan& plan, int32_t device) {
  std::vector<BlockId> blocks;
  if (plan.stages.front().device == device) blocks.push_back({BlockKind::kEmbedding, 0});
  for (const Stage& stage : plan.stages) {
    for (int part = stage.lo; stage.device == device && part < stage.hi; ++part) {
      if (blocks.empty() || !(blocks.back() == plan.parts[part].block)) blocks.push_back(plan.parts[part].block);
    }
  }
  return blocks;
}

bool HasHead(const Plan& plan, int32_t device) {
  return std::ranges::any_of(plan.stages, [&](const Stage& stage) { return stage.device == device && IdsBefore(plan, stage.hi) > 0; });
}

}  // namespace lime
