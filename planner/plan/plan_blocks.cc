#include "planner/plan/plan_blocks.h"

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

}  // namespace lime
