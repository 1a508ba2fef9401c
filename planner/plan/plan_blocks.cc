#include "planner/plan/plan_blocks.h"

#include <algorithm>

#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"

namespace lime {
namespace {

// Whether all parts of the block are resident as a whole, and on this device.
bool IsWhole(const Plan& plan, int32_t device, BlockId id) {
  const auto [begin, end] = PartsOf(plan, id);
  for (int part = begin; part < end; ++part) {
    if (plan.parts[part].streamed || plan.parts[part].on_demand()) return false;
    if (plan.stages[StageOf(plan, part)].device != device || WaitsForKv(plan, part)) return false;
  }
  return begin < end;
}

}  // namespace

std::vector<BlockId> BlocksOn(const Plan& plan, int32_t device) {
  std::vector<BlockId> blocks;
  if (plan.stages.front().device == device) blocks.push_back({BlockKind::kEmbedding, 0});
  for (const int part : PartsOn(plan, device)) {
    if (blocks.empty() || !(blocks.back() == plan.parts[part].block)) blocks.push_back(plan.parts[part].block);
  }
  return blocks;
}

bool HasHead(const Plan& plan, int32_t device) {
  return std::ranges::any_of(plan.stages, [&](const Stage& stage) { return stage.device == device && IdsBefore(plan, stage.hi) > 0; });
}

std::vector<int> PartsOn(const Plan& plan, int32_t device) {
  std::vector<int> parts;
  for (const Stage& stage : plan.stages) {
    for (int part = stage.lo; part < stage.hi; ++part) {
      if ((plan.parts[part].hosted() ? plan.parts[part].host : stage.device) == device) parts.push_back(part);
    }
  }
  return parts;
}

ResidentWeights ResidentWeightsOn(const Plan& plan, int32_t device) {
  ResidentWeights resident;
  if (plan.stages.front().device == device)
    (plan.embedding == EmbeddingPlacement::kByRows ? resident.pinned : resident.whole).push_back({BlockKind::kEmbedding, 0});
  const bool parts_leave = GrowsKv(plan);
  for (const int part : PartsOn(plan, device)) {
    const PlanPart& what = plan.parts[part];
    const bool whole = !parts_leave && IsWhole(plan, device, what.block);
    std::vector<BlockId>& list = whole ? resident.whole : resident.pinned;
    if (list.empty() || !(list.back() == what.block)) list.push_back(what.block);
    if (!whole && !what.streamed && !what.is_kv() && !what.on_demand()) resident.parts.push_back(part);
  }
  return resident;
}

ResidentWeights WeightsThatMayStay(ResidentWeights weights, bool tied) {
  weights.pinned.clear();
  if (tied) std::erase_if(weights.whole, [](BlockId id) { return id.kind == BlockKind::kEmbedding || id.kind == BlockKind::kHead; });
  return weights;
}

}  // namespace lime
