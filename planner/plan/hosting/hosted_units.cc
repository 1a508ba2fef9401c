// Units on demand that another device has, the host: which device has which, and the checks of a
// plan.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_checks.h"

namespace lime {
namespace {

// The device of the stage has units of its own, which it computes while it waits. No device is
// asked twice for one layer.
absl::Status CheckHostOfPart(const Plan& plan, const Stage& stage, int p, const std::set<int32_t>& asked) {
  const PlanPart& part = plan.parts[p];
  const std::string name = absl::StrCat("parts[", p, "]");
  const PlanDevice &host = plan.devices[part.host], &owner = plan.devices[stage.device];
  if (p == 0 || !plan.parts[p - 1].on_demand() || !(plan.parts[p - 1].block == part.block))
    return Invalid("plan: ", name, " has a host, but the device of its stage has no units of ", BlockName(part.block), " before it");
  if (plan.parts[p - 1].rows.back().expert >= part.rows.front().expert)
    return Invalid("plan: ", name, " divides the rows of expert ", part.rows.front().expert, " or has it out of order");
  if (part.host == stage.device) return Invalid("plan: ", name, ".host = ", part.host, " is the device of its stage");
  if (asked.contains(part.host))
    return Invalid("plan: ", name, ".host = ", part.host, " has other units of ", BlockName(part.block), "; join the two parts");
  if (host.numerics_id != owner.numerics_id) {
    return Invalid("plan: ", name, ".host has kernels of order \"", host.numerics_id,
                   "\", but the device of its stage has kernels of order \"", owner.numerics_id, "\"");
  }
  if (plan.retained_positions > 0) return Invalid("plan: ", name, " has a host, but the plan evicts KV; plan without one of them");
  return absl::OkStatus();
}

}  // namespace

bool HostsUnitsOf(const Plan& plan, int32_t host, int32_t owner) {
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; stage.device == owner && p < stage.hi; ++p) {
      if (plan.parts[p].hosted() && plan.parts[p].host == host) return true;
    }
  }
  return false;
}

bool HostsUnits(const Plan& plan, int32_t device) {
  return std::ranges::any_of(plan.parts, [device](const PlanPart& part) { return part.hosted() && part.host == device; });
}

bool HasHostedUnits(const Plan& plan) {
  return std::ranges::any_of(plan.parts, &PlanPart::hosted);
}

double AddedMs(const Plan& plan, int p) {
  const PlanPart& part = plan.parts[p];
  if (!part.hosted()) return ExpectedMs(part);
  const PlanPart& before = plan.parts[p - 1];
  return before.hosted() ? 0 : std::max(0.0, part.decode_ms - ExpectedMs(before));
}

absl::Status CheckHostedUnits(const Plan& plan) {
  for (const Stage& stage : plan.stages) {
    std::set<int32_t> asked;
    for (int p = stage.lo; p < stage.hi; ++p) {
      if (BeginsBlock(plan, p)) asked.clear();
      if (!plan.parts[p].hosted()) continue;
      LIME_RETURN_IF_ERROR(CheckHostOfPart(plan, stage, p, asked));
      asked.insert(plan.parts[p].host);
    }
  }
  return absl::OkStatus();
}

}  // namespace lime
