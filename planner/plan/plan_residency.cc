#include "planner/plan/plan_residency.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_rows.h"

namespace lime {
namespace {

// Whether this part has the page count of its layer.
bool HasPages(const Plan& plan, int part) {
  return HasKv(plan.parts[part].block.kind) && BeginsBlock(plan, part);
}

absl::Status CheckPages(const Plan& plan) {
  const int64_t pages = ResidencyOf(plan).layer_pages;
  for (int p = 0; p < plan.NumParts(); ++p) {
    if (HasPages(plan, p) && plan.parts[p].kv_pages != PagesOfLayer(plan, plan.parts[p], pages)) {
      return Invalid("residency: ", PartName(plan, p), " has ", plan.parts[p].kv_pages, " KV pages, but others have ", pages,
                     "; a plan whose KV grows has the same number for all, up to the pages of a window");
    }
  }
  return absl::OkStatus();
}

absl::Status SetMemory(const PlanNeed& need, Bytes page_bytes, PlanDevice& device) {
  PlanMemory& memory = device.memory;
  device.kv_pages = need.kv_pages;
  memory.kv = need.kv_pages * page_bytes;
  memory.state = need.state;
  memory.weights = need.weights;
  SetKvOfOthers(need, memory);
  memory.margin = device.least_margin;
  if (memory.ring < need.ring) {
    return absl::ResourceExhaustedError(absl::StrCat("residency: the parts that device \"", device.name, "\" would stream need a ring of ",
                                                     FormatBytes(need.ring), ", but it has ", FormatBytes(memory.ring)));
  }
  if (memory.total() > device.budget) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "residency: device \"", device.name, "\" would need ", FormatBytes(memory.total()), " (KV ", FormatBytes(memory.kv), ", weights ",
        FormatBytes(memory.weights), ", margin ", FormatBytes(memory.margin), "), but it may use ", FormatBytes(device.budget)));
  }
  memory.margin += device.budget - memory.total();
  return absl::OkStatus();
}

}  // namespace

Residency ResidencyOf(const Plan& plan) {
  Residency residency;
  for (int p = 0; p < plan.NumParts(); ++p) {
    if (HasPages(plan, p)) residency.layer_pages = std::max(residency.layer_pages, plan.parts[p].kv_pages);
    if (plan.parts[p].streamed) residency.streamed.push_back(p);
  }
  return residency;
}

int64_t FullLayerPages(const Plan& plan) {
  int64_t most = 0;  // of a sequence in any layer with a window
  for (int p = 0; p < plan.NumParts(); ++p) {
    if (!HasPages(plan, p)) continue;
    if (plan.parts[p].window.positions == 0) return RetainedPages(plan) * plan.sequences;
    most = std::max(most, plan.parts[p].window.pages);
  }
  return (most > 0 ? std::min(most, RetainedPages(plan)) : RetainedPages(plan)) * plan.sequences;
}

absl::StatusOr<Plan> WithResidency(const Plan& plan, const Residency& residency) {
  LIME_RETURN_IF_ERROR(CheckPages(plan));
  if (residency.layer_pages < 0 || residency.layer_pages > FullLayerPages(plan)) {
    return Invalid("residency: ", residency.layer_pages, " KV pages of a layer are asked for, but the plan has room for 0 to ",
                   FullLayerPages(plan));
  }
  Plan changed = plan;
  for (int p = 0; p < plan.NumParts(); ++p) {
    changed.parts[p].streamed = false;
    if (HasPages(plan, p)) changed.parts[p].kv_pages = PagesOfLayer(plan, plan.parts[p], residency.layer_pages);
  }
  int32_t before = -1;
  for (const int32_t p : residency.streamed) {
    if (p <= before || p >= plan.NumParts()) return Invalid("residency: part ", p, " cannot follow part ", before, " of ", plan.NumParts());
    if (plan.parts[p].on_demand()) return Invalid("residency: ", PartName(plan, p), " loads on demand, so it cannot stream");
    changed.parts[before = p].streamed = true;
  }
  const std::vector<PlanNeed> needs = NeedsOf(changed);
  for (int d = 0; d < plan.NumDevices(); ++d) {
    if (HasPart(plan, d)) LIME_RETURN_IF_ERROR(SetMemory(needs[d], plan.page_bytes, changed.devices[d]));
  }
  LIME_RETURN_IF_ERROR(changed.Validate());
  return changed;
}

bool DifferInResidencyOnly(const Plan& one, const Plan& other) {
  Plan same = other;
  if (one.parts.size() != other.parts.size() || one.devices.size() != other.devices.size()) return false;
  for (size_t p = 0; p < one.parts.size(); ++p) {
    same.parts[p].streamed = one.parts[p].streamed;
    same.parts[p].kv_pages = one.parts[p].kv_pages;
  }
  for (size_t d = 0; d < one.devices.size(); ++d) {
    PlanDevice& device = same.devices[d];
    if (device.memory.ring != one.devices[d].memory.ring) return false;
    device.kv_pages = one.devices[d].kv_pages;
    device.memory = one.devices[d].memory;
  }
  same.predicted = one.predicted;
  return same == one;
}

}  // namespace lime
