#include "planner/search/block_homes.h"

#include <algorithm>
#include <utility>

#include "planner/evaluation/assignment.h"
#include "planner/plan/plan_blocks.h"
#include "planner/search/starts.h"

namespace lime {
namespace {

constexpr double kAwayMs = 1e7;
constexpr BlockId kEmbeddingBlock = {BlockKind::kEmbedding, 0};

// By part: whether the device may have it. The device of the first block also reads the embedding.
std::vector<bool> Allowed(const BlockHomes& homes, const Plan& head, int32_t device) {
  const std::string& name = head.devices[static_cast<size_t>(device)].name;
  std::vector<bool> allowed;
  const bool embeds = HoldsBlock(homes, name, kEmbeddingBlock);
  for (const PlanPart& part : head.parts)
    allowed.push_back(HoldsBlock(homes, name, part.block) && (embeds || !(part.block == head.parts.front().block)));
  return allowed;
}

void AddAway(const std::vector<bool>& allowed, std::vector<double>& comp_ms) {
  for (size_t p = 0; p < comp_ms.size() && p < allowed.size(); ++p) {
    if (!allowed[p]) comp_ms[p] += kAwayMs;
  }
}

// The device of each part: the preferred one if possible, else the previous one while possible,
// else the one that can continue longest. Empty if a part has no home.
std::vector<int16_t> DevicesAtHome(const std::vector<std::vector<bool>>& allowed, int preferred) {
  const size_t parts = allowed.front().size();
  std::vector<int16_t> devices(parts);
  int here = -1;
  for (size_t p = 0; p < parts; ++p) {
    if (preferred >= 0 && allowed[static_cast<size_t>(preferred)][p]) here = preferred;
    if (here < 0 || !allowed[static_cast<size_t>(here)][p]) {
      size_t longest = 0;
      here = -1;
      for (size_t d = 0; d < allowed.size(); ++d) {
        size_t end = p;
        while (end < parts && allowed[d][end]) ++end;
        if (end - p > longest) longest = end - p, here = static_cast<int>(d);
      }
      if (here < 0) return {};
    }
    devices[p] = static_cast<int16_t>(here);
  }
  return devices;
}

}  // namespace

bool HoldsBlock(const BlockHomes& homes, const std::string& device, BlockId id) {
  const auto found = homes.find(device);
  return found == homes.end() || std::ranges::find(found->second, id) != found->second.end();
}

std::vector<BlockId> AwayFromHome(const BlockHomes& homes, const Plan& plan, int32_t device) {
  std::vector<BlockId> blocks = BlocksOn(plan, device);
  const std::string& name = plan.devices[static_cast<size_t>(device)].name;
  std::erase_if(blocks, [&](BlockId id) { return HoldsBlock(homes, name, id); });
  return blocks;
}

bool IsAtHome(const BlockHomes& homes, const Plan& plan) {
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    if (!AwayFromHome(homes, plan, d).empty()) return false;
  }
  return true;
}

void KeepAtHome(const BlockHomes& homes, PlanProblem& problem) {
  if (homes.empty()) return;
  for (int32_t d = 0; d < problem.instance.NumDevices(); ++d) {
    const std::vector<bool> allowed = Allowed(homes, problem.head, d);
    Instance::Device& device = problem.instance.devices[static_cast<size_t>(d)];
    AddAway(allowed, device.comp_ms);
    for (auto& [batch, comp_ms] : device.comp_ms_by_batch) AddAway(allowed, comp_ms);
    if (!problem.first_token) continue;
    for (PrefillChunk& chunk : problem.first_token->chunks) AddAway(allowed, chunk.instance.devices[static_cast<size_t>(d)].comp_ms);
  }
}

std::vector<StagePlan> PlansAtHome(const BlockHomes& homes, const PlanProblem& problem) {
  if (homes.empty()) return {};
  const Instance& instance = problem.instance;
  std::vector<std::vector<bool>> allowed(static_cast<size_t>(instance.NumDevices()));
  for (int32_t d = 0; d < instance.NumDevices(); ++d) allowed[static_cast<size_t>(d)] = Allowed(homes, problem.head, d);
  std::vector<Assignment> found;
  for (int preferred = -1; preferred < instance.NumDevices(); ++preferred) {
    Assignment plan = {.device = DevicesAtHome(allowed, preferred), .streamed = std::vector<uint8_t>(instance.blocks.size(), 0)};
    if (plan.device.empty()) return {};
    plan.embedding_by_rows = instance.devices[static_cast<size_t>(plan.device.front())].embed_rows_ms.has_value();
    for (const StreamingStyle& style : StreamingStyles(instance)) {
      Assignment streams = plan;
      StreamInStyle(instance, std::vector<StreamingStyle>(instance.devices.size(), style), streams);
      if (std::ranges::find(found, streams) == found.end()) found.push_back(std::move(streams));
    }
  }
  std::vector<StagePlan> plans(found.size());
  std::ranges::transform(found, plans.begin(), ToPlan);
  return plans;
}

}  // namespace lime
