#include "planner/solve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"
#include "planner/base/names.h"
#include "planner/baselines/solve_paper.h"
#include "planner/batches.h"
#include "planner/evaluation/evaluator.h"
#include "planner/plan/instance/plan_json.h"
#include "planner/replan.h"
#include "planner/search/plan_search.h"

namespace lime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Answer = absl::StatusOr<ordered_json>;

std::vector<double> List(std::span<const double> numbers) {
  return {numbers.begin(), numbers.end()};
}

Answer SolveEval(const json& problem, const SolveOptions& /*options*/) {
  JsonFields fields(problem, "problem");
  const json& instance_json = fields.Object("instance");
  const json& plan_json = fields.Object("plan");
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_ASSIGN_OR_RETURN(Instance instance, InstanceFromJson(instance_json));
  LIME_ASSIGN_OR_RETURN(const StagePlan plan, StagePlanFromJson(plan_json, instance));
  LIME_ASSIGN_OR_RETURN(const PlanBatch batch, PlanBatchFromJson(plan_json));
  if (batch.batch > 0) {
    LIME_ASSIGN_OR_RETURN(instance, WithBatch(instance, batch.microbatches, batch.batch));
  }
  Evaluator evaluator(instance);
  const double ms_per_step = evaluator.MsPerStep(plan);
  ordered_json out;
  out["feasible"] = std::isfinite(ms_per_step);
  if (std::isfinite(ms_per_step)) {
    out["ms_per_step"] = ms_per_step;
  } else {
    out["reason"] = evaluator.Infeasibility();
  }
  out["resident_mb"] = List(evaluator.used_mb());
  out["pool_mb"] = List(evaluator.pool_mb());
  return out;
}

// ---- Searches

constexpr Names<Granularity, 4> kGranularityNames = {{{Granularity::kBlock, "block"},
                                                      {Granularity::kLayer, "layer"},
                                                      {Granularity::kModelBlock, "model-block"},
                                                      {Granularity::kWholeBlock, "whole-block"}}};

absl::StatusOr<SearchOptions> ReadOptions(const json& problem, const SolveOptions& options) {
  JsonFields fields(problem, "problem");
  SearchOptions out;
  out.seed = static_cast<uint64_t>(fields.IntOr("seed", 1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
  out.time_limit_ms = fields.DoubleOr("time_limit_ms", 5000, 0, kMaxPlanNumber);
  out.max_work = options.max_work;
  if (options.now_ms) out.elapsed_ms = [now_ms = options.now_ms, start_ms = options.now_ms()] { return now_ms() - start_ms; };
  const std::string granularity = fields.StringOr("granularity", "block");
  LIME_RETURN_IF_ERROR(fields.status());
  if (const std::optional<Granularity> known = kGranularityNames.Find(granularity)) {
    out.granularity = *known;
    return out;
  }
  return Invalid("problem: field \"granularity\" is none of block, layer, model-block and whole-block");
}

ordered_json Infeasible(const std::string& reason) {
  return {{"feasible", false}, {"reason", reason}};
}

Answer SolveOptimize(const json& problem, const SolveOptions& options) {
  JsonFields fields(problem, "problem");
  const json& instance_json = fields.Object("instance");
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_ASSIGN_OR_RETURN(const Instance instance, InstanceFromJson(instance_json));
  LIME_ASSIGN_OR_RETURN(const SearchOptions search, ReadOptions(problem, options));
  const std::string name = fields.StringOr("strategy", "lime");
  LIME_RETURN_IF_ERROR(fields.status());
  const std::optional<Strategy> strategy = kStrategyNames.Find(name);
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

// The current instance, with the changes of the network and the devices.
absl::StatusOr<Instance> ReadChanged(const json& problem, const json& instance_json) {
  JsonFields fields(problem, "problem");
  json changed = instance_json;
  changed["net"] = fields.Object("new_net");
  if (fields.Has("new_devices")) changed["devices"] = fields.Array("new_devices", kMaxPlanDevices);
  LIME_RETURN_IF_ERROR(fields.status());
  return InstanceFromJson(changed);
}

Answer SolveReplan(const json& problem, const SolveOptions& options) {
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
                   " before; give a lost device a mem_mb of 0");
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

// ---- All kinds

// Answers have 12 significant digits. The sums behind them round at about the 14th, and 10.1 is
// easier to read than 10.100000000000023.
void RoundNumbers(ordered_json& answer) {
  if (answer.is_structured()) {
    for (ordered_json& element : answer) RoundNumbers(element);
  } else if (answer.is_number_float()) {
    double rounded = 0;
    if (absl::SimpleAtod(absl::StrFormat("%.12g", answer.get<double>()), &rounded)) answer = rounded;
  }
}

struct SolvedKind {
  std::string_view name;
  Answer (*solve)(const json& problem, const SolveOptions& options);
};

constexpr SolvedKind kKinds[] = {{"optimize", SolveOptimize}, {"replan", SolveReplan}, {"eval", SolveEval}};

// By LIME, else by a formula of the paper; nothing for an unknown kind.
std::optional<Answer> SolveKind(std::string_view kind, const json& problem, const SolveOptions& options) {
  for (const SolvedKind& known : kKinds) {
    if (known.name == kind) return known.solve(problem, options);
  }
  return SolvePaper(kind, problem);
}

}  // namespace

absl::StatusOr<std::string> Solve(std::string_view text, const SolveOptions& options) {
  LIME_ASSIGN_OR_RETURN(const json problem, ParseJsonObject(text, "problem", kMaxProblemBytes));
  JsonFields fields(problem, "problem");
  const std::string kind = fields.String("kind");
  LIME_RETURN_IF_ERROR(fields.status());
  std::optional<Answer> answer = SolveKind(kind, problem, options);
  if (!answer)
    return Invalid("problem: field \"kind\" = \"", kind.substr(0, 80),
                   "\" is none of optimize, eval, replan, eq1, slots, online and kvtransfer");
  LIME_RETURN_IF_ERROR(answer->status());
  RoundNumbers(**answer);
  return (*answer)->dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace lime
