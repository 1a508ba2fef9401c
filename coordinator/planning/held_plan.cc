#include "coordinator/planning/held_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/plan/plan_blocks.h"

namespace lime {
namespace {

constexpr size_t kNamedBlocks = 4;  // named per device in one sentence

BlockHomes HomesThatStay(const cli::ClusterHoldings& holdings) {
  BlockHomes stay;
  for (const auto& [name, blocks] : holdings.homes) {
    if (holdings.no_push.contains(name)) stay[name] = blocks;
  }
  return stay;
}

// Whether every device has the weights of all layers with experts.
bool HoldAllExperts(const PlanInputs& inputs, const BlockHomes& homes) {
  for (const BlockSpec& block : inputs.spec.blocks) {
    const auto lacks = [&](const ClusterDevice& device) { return !HoldsBlock(homes, device.name, block.id); };
    if (block.id.kind == BlockKind::kExperts && std::ranges::any_of(inputs.devices, lacks)) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<HeldPlan> ChooseHeldPlan(const PlanInputs& inputs, const cli::ClusterHoldings& holdings, bool may_push,
                                        const SearchPlanFor& search) {
  PlanInputs any = inputs, here = inputs;
  // A push sends each device its own layers. Those of all devices may not fit on its disk.
  any.divides_experts = here.divides_experts = inputs.divides_experts && HoldAllExperts(inputs, holdings.homes);
  any.homes = HomesThatStay(holdings);
  here.homes = holdings.homes;
  absl::StatusOr<Plan> best = search(std::move(any));
  if (!best.ok() && !absl::IsResourceExhausted(best.status())) return best.status();
  if (best.ok() && IsAtHome(holdings.homes, *best)) return HeldPlan{.plan = *std::move(best)};
  absl::StatusOr<Plan> held = search(std::move(here));
  if (!held.ok() && !absl::IsResourceExhausted(held.status())) return held.status();
  const bool slower = held.ok() && best.ok() && held->predicted.ms_per_token > best->predicted.ms_per_token * (1 + kWorthPushing);
  if (held.ok() && !(slower && may_push)) {
    HeldPlan chosen{.plan = *std::move(held), .source = PlanSource::kHeld};
    if (slower) chosen.faster = *std::move(best);
    return chosen;
  }
  if (!best.ok()) return best.status();
  if (may_push) return HeldPlan{.plan = *std::move(best)};
  return absl::FailedPreconditionError(Lacking(holdings.homes, *best));
}

std::string Lacking(const BlockHomes& homes, const Plan& plan) {
  std::vector<std::string> sentences;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    const std::vector<BlockId> away = AwayFromHome(homes, plan, d);
    if (away.empty()) continue;
    std::vector<std::string> names;
    for (size_t i = 0; i < std::min(away.size(), kNamedBlocks); ++i) names.push_back(BlockName(away[i]));
    const std::string more = away.size() > kNamedBlocks ? absl::StrCat(" and ", away.size() - kNamedBlocks, " more") : "";
    sentences.push_back(absl::StrCat("device \"", plan.devices[static_cast<size_t>(d)].name, "\" lacks ", away.size(), " of ",
                                     BlocksOn(plan, d).size(), " blocks that the plan needs here (", absl::StrJoin(names, ", "), more,
                                     ")"));
  }
  return absl::StrJoin(sentences, "; ");
}

}  // namespace lime
