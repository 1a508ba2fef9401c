// Any text as a plan: an error in one sentence, or a plan that is written and read back the same,
// compiles, and whose Programs run to the end within every budget.
#include <string_view>

#include "planner/base/check.h"
#include "planner/kv/kv_levels.h"
#include "planner/plan/baselines/eviction.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/sim/simulator.h"

namespace {

using namespace lime;

void CheckRuns(const Plan& plan, const absl::StatusOr<SimulationResult>& result) {
  LIME_CHECK(result.ok()) << result.status().message() << "\n" << ToJsonText(plan);
  for (int d = 0; d < plan.NumDevices(); ++d) {
    LIME_CHECK_LE(result->devices[d].most_used, plan.devices[d].budget - plan.devices[d].memory.margin);
  }
  LIME_CHECK(!GanttText(result->timeline, 0, result->step_ends_ms.back() + 1, 20).empty());
  LIME_CHECK(!TraceJson(result->timeline).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<Plan> plan = ParsePlan({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!plan.ok()) {
    LIME_CHECK(!plan.status().message().empty());
    return 0;
  }
  const absl::StatusOr<Plan> again = ParsePlan(ToJsonText(*plan), "again");
  LIME_CHECK(again.ok()) << again.status().message();
  LIME_CHECK(*again == *plan);
  LIME_CHECK(!ToJsonText(*plan).empty());
  if (int64_t{plan->NumParts()} * plan->microbatches > 1000) return 0;  // for the sake of speed
  CheckRuns(*plan, SimulateDecode(*plan, {.steps = 3}));
  LIME_CHECK(!EvictsKv(*plan) || MakeKvLevels(*plan).levels.size() > 1);
  if (plan->prompt_tokens > 0 && plan->NumParts() * plan->NumPrefillChunks() <= 1000) CheckRuns(*plan, SimulatePrefill(*plan));
  return 0;
}
