#include "planner/solve_plans.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/batches.h"
#include "planner/plan/plan_json.h"
#include "planner/plan_search.h"
#include "planner/replan.h"

namespace lime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::pair<std::string_view, Granularity> kGranularities[] = {{"block", Granularity::kBlock},
                                                                       {"layer", Granularity::kLayer},
                                                                       {"model-block", Granularity::kModelBlock},
                                                                       {"whole-block", Granularity::kWholeBlock}};

absl::StatusOr<SearchOptions> ReadOptions(const json& problem, const SolveOptions& options) {
  JsonFields fields(problem, "problem");
  SearchOptions out;
  out.seed = static_cast<uint64_t>(fields.IntOr("seed", 1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
  out.time_limit_ms = fields.DoubleOr("time_limit_ms", 5000, 0, kMaxPlanNumber);
  out.max_work = options.max_work;
  if (options.now_ms) out.elapsed_ms = [now_ms = options.now_ms, start_ms = options.now_ms()] { return now_ms() - start_ms; };
  const std::string granularity = fields.StringOr("granularity", "block");
  LIME_RETURN_IF_ERROR(fields.status());
  for (const auto& [name, value] : kGranularities) {
    out.granularity = value;
    if (granularity == name) return out;
  }
  return Invalid("problem: field \"granularity\" is none of block, layer, model-block and whole-block");
}

ordered_json Infeasible(const std::string& reason) {
  return {{"feasible", false}, {"reason", reason}};
}

}  // namespace

absl::StatusOr<ordered_json> SolveOptimize(const json& problem, const SolveOptions& options) {
  JsonFields fields(problem, "problem");
  const json& instance_json = fields.Object("instance");
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_ASSIGN_OR_RETURN(const Instance instance, InstanceFromJson(instance_json));
  LIME_ASSIGN_OR_RETURN(const SearchOptions search, ReadOptions(problem, options));
  const std::string name = fields.StringOr("strategy", "lime");
  LIME_RETURN_IF_ERROR(fields.status());
  const std::optional<Strategy> strategy = ParseStrategy(name);
  if (!strategy) {
    return Invalid("problem: field \"strategy\" = \"", name.substr(0, 80),
                   "\" is none of lime, lime-paper, pp, pp-offload, pp-offload-batched and edgeshard");
  }
  LIME_ASSIGN_OR_RETURN(const BatchedPlan best, PlanBatches(*strategy, instance, search));
  if (!best.found.feasible) return Infeasible(best.found.reason);
  return ordered_json{{"feasible", true},
                      {"ms_per_step", best.found.ms_per_step},
                      {"plan", ToJson(best.found.plan, {best.microbatches, best.batch})},
                      {"lower_bound_ms", std::min(best.lower_bound_ms, best.found.ms_per_step)}};
}

namespace {

// The instance as it is now: what of the network and the devices has changed.
absl::StatusOr<Instance> ReadChanged(const json& problem, const json& instance_json) {
  JsonFields fields(problem, "problem");
  json changed = instance_json;
  changed["net"] = fields.Object("new_net");
  if (fields.Has("new_devices")) changed["devices"] = fields.Array("new_devices", kMaxPlanDevices);
  LIME_RETURN_IF_ERROR(fields.status());
  return InstanceFromJson(changed);
}

}  // namespace

absl::StatusOr<ordered_json> SolveReplan(const json& problem, const SolveOptions& options) {
  JsonFields fields(problem, "problem");
  const json& instance_json = fields.Object("instance");
  const json& plan_json = fields.Object("current_plan");
  ReplanProblem replan;
  replan.remaining_steps = fields.DoubleOr("remaining_steps", 0, 0, kMaxPlanNumber);
  replan.move_mb_per_ms = fields.DoubleOr("move_mb_per_ms", 0, 0, kMaxPlanNumber);
  LIME_RETURN_IF_ERROR(fields.status());
  if (replan.move_mb_per_ms > 0 && replan.move_mb_per_ms < kMinDiskRate) {
    return Invalid("problem: field \"move_mb_per_ms\" = ", replan.move_mb_per_ms, " is neither 0 nor at least ", kMinDiskRate);
  }
  LIME_ASSIGN_OR_RETURN(const Instance before, InstanceFromJson(instance_json));
  LIME_ASSIGN_OR_RETURN(replan.current, StagePlanFromJson(plan_json, before));
  LIME_ASSIGN_OR_RETURN(replan.instance, ReadChanged(problem, instance_json));
  LIME_ASSIGN_OR_RETURN(const PlanBatch batch, PlanBatchFromJson(plan_json));
  if (batch.batch > 0) {
    LIME_ASSIGN_OR_RETURN(replan.instance, WithBatch(replan.instance, batch.microbatches, batch.batch));
  }
  if (replan.instance.NumDevices() < before.NumDevices()) {
    return Invalid("problem: field \"new_devices\" has ", replan.instance.NumDevices(), " devices, fewer than the ", before.NumDevices(),
                   " before; give one that is gone a mem_mb of 0");
  }
  LIME_ASSIGN_OR_RETURN(const SearchOptions search, ReadOptions(problem, options));
  const Replan again = PlanAgain(replan, search);
  if (!again.feasible) return Infeasible(again.reason);
  return ordered_json{{"feasible", true},
                      {"changed", again.changed},
                      {"plan", ToJson(again.plan, batch)},
                      {"switch_ms", again.switch_ms},
                      {"ms_per_step", again.ms_per_step}};
}

}  // namespace lime
