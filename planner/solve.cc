#include "planner/solve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"
#include "planner/base/names.h"
#include "planner/base/strings.h"
#include "planner/baselines/closed_form.h"
#include "planner/batches.h"
#include "planner/evaluation/evaluator.h"
#include "planner/kv/online_memory.h"
#include "planner/plan/plan_json.h"
#include "planner/replan.h"
#include "planner/search/plan_search.h"

namespace lime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Answer = absl::StatusOr<ordered_json>;

constexpr double kMax = kMaxPlanNumber;
constexpr int64_t kMaxCount = 1'000'000'000'000'000;  // exact as a double
// Smallest divisor; quotients of two fields cannot overflow.
constexpr double kTiny = 1e-15;

std::vector<double> List(std::span<const double> numbers) {
  return {numbers.begin(), numbers.end()};
}

Answer SolveEval(const json& problem) {
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

// `r` or `k`: one number per device, or per device of the order if the order omits devices.
absl::StatusOr<std::vector<double>> ReadLayerCounts(JsonFields& fields, const char* key, const Instance& instance,
                                                    const std::vector<int32_t>& order) {
  const std::vector<double> counts = fields.Doubles(key, 0, kMaxPlanBlocks, kMaxPlanDevices);
  LIME_RETURN_IF_ERROR(fields.status());
  if (counts.size() == instance.devices.size()) return counts;
  if (counts.size() != order.size()) {
    return Invalid("problem: field \"", key, "\" has ", counts.size(), " numbers for ", instance.NumDevices(), " devices");
  }
  std::vector<double> by_device(instance.devices.size(), 0.0);
  for (size_t i = 0; i < order.size(); ++i) by_device[order[i]] = counts[i];
  return by_device;
}

absl::Status CheckOrder(const std::vector<int32_t>& order) {
  std::vector<int32_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) return Invalid("problem: field \"order\" names device ", *twice, " twice");
  return sorted.empty() ? Invalid("problem: field \"order\" is empty") : absl::OkStatus();
}

Answer SolveEq1(const json& problem) {
  JsonFields fields(problem, "problem");
  const json& instance_json = fields.Object("instance");
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_ASSIGN_OR_RETURN(const Instance instance, InstanceFromJson(instance_json));
  UniformPlan plan;
  for (const int64_t device : fields.Ints("order", 0, instance.NumDevices() - 1, kMaxPlanDevices)) {
    plan.order.push_back(static_cast<int32_t>(device));
  }
  plan.segments = static_cast<double>(fields.Int("S", 1, kMaxPlanBlocks));
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_RETURN_IF_ERROR(CheckOrder(plan.order));
  LIME_ASSIGN_OR_RETURN(plan.resident, ReadLayerCounts(fields, "r", instance, plan.order));
  LIME_ASSIGN_OR_RETURN(plan.streamed, ReadLayerCounts(fields, "k", instance, plan.order));
  LIME_ASSIGN_OR_RETURN(const std::vector<LayerTimes> layers, UniformLayerTimes(instance));
  const ClosedForm form = EvaluateClosedForm(layers, instance.net.tx_ms + instance.net.lat_ms, plan);
  if (!std::isfinite(form.total_ms)) return Invalid("problem: field \"k\" streams on a device whose disk reads 0 MB/ms");
  return ordered_json{{"total_ms", form.total_ms},
                      {"segment_critical_path_ms", form.segment_critical_path_ms},
                      {"segment_load_cycle_ms", form.segment_load_cycle_ms},
                      {"uncovered_ms", form.uncovered_ms}};
}

Answer SolveSlots(const json& problem) {
  JsonFields fields(problem, "problem");
  SlotProblem slots;
  slots.load_ms = fields.Doubles("load_ms", 0, kMax, kMaxPlanBlocks);
  slots.comp_ms = fields.Doubles("comp_ms", 0, kMax, kMaxPlanBlocks);
  slots.kmax = fields.Ints("kmax", 0, kMaxCount, kMaxPlanBlocks);
  slots.need = fields.Int("need", 0, kMaxCount);
  slots.c_ms = fields.Double("C_ms", 0, kMax);
  LIME_RETURN_IF_ERROR(fields.status());
  if (slots.comp_ms.size() != slots.load_ms.size() || slots.kmax.size() != slots.load_ms.size()) {
    return Invalid("problem: fields \"load_ms\", \"comp_ms\" and \"kmax\" have ", slots.load_ms.size(), ", ", slots.comp_ms.size(), " and ",
                   slots.kmax.size(), " numbers; give one each per device");
  }
  const SlotShares shares = ShareSlots(slots);
  if (!shares.feasible) {
    return ordered_json{{"feasible", false}, {"reason", absl::StrCat("the devices have fewer slots than the ", slots.need, " needed")}};
  }
  return ordered_json{{"feasible", true}, {"uncovered_ms", shares.uncovered_ms}, {"k", shares.k}};
}

Answer SolveOnline(const json& problem) {
  JsonFields fields(problem, "problem");
  OnlineProblem online;
  online.free_mb = fields.Double("free_mb", 0, kMax);
  online.kv_tok_mb = fields.Double("kv_tok_mb", kTiny, kMax);
  online.mha_mb = fields.Double("mha_mb", 0, kMax);
  online.mlp_mb = fields.Double("mlp_mb", 0, kMax);
  online.visits = fields.Int("visits", 1, kMaxCount);
  online.cap_mha = fields.Int("cap_mha", 0, kMaxOffloadChoices);
  online.cap_mlp = fields.Int("cap_mlp", 0, kMaxOffloadChoices);
  online.n_max = fields.Int("n_max", 0, kMaxCount);
  LIME_RETURN_IF_ERROR(fields.status());
  if ((online.cap_mha + 1) * (online.cap_mlp + 1) > kMaxOffloadChoices) {
    return Invalid("problem: fields \"cap_mha\" and \"cap_mlp\" allow more than ", kMaxOffloadChoices, " choices");
  }
  const OffloadTable table = MakeOffloadTable(online);
  ordered_json steps = ordered_json::array();
  for (const OffloadThreshold& step : table.steps) {
    steps.push_back({{"alpha", step.alpha},
                     {"beta", step.beta},
                     {"capacity_tokens", step.capacity_tokens},
                     {"extra_load_mb_per_visit", step.extra_load_mb_per_visit}});
  }
  return ordered_json{{"steps", std::move(steps)}, {"exhausted", table.exhausted}};
}

Answer SolveKvTransfer(const json& problem) {
  JsonFields fields(problem, "problem");
  const KvTransferProblem lend = {.period_ms = fields.Double("period_ms", 0, kMax),
                                  .activation_busy_ms = fields.Double("activation_busy_ms", 0, kMax),
                                  .bw_mb_per_ms = fields.Double("bw_mb_per_ms", 0, kMax),
                                  .kv_visit_mb = fields.Double("kv_visit_mb", kTiny, kMax),
                                  .target_free_mb = fields.Double("target_free_mb", -kMax, kMax),
                                  .kv_tok_mb = fields.Double("kv_tok_mb", kTiny, kMax),
                                  .n = fields.Int("n", 0, kMaxCount)};
  LIME_RETURN_IF_ERROR(fields.status());
  return ordered_json{{"tokens", TokensToLend(lend)}};
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

template <Answer (*kSolve)(const json&)>
Answer AtOnce(const json& problem, const SolveOptions&) {
  return kSolve(problem);
}

constexpr SolvedKind kKinds[] = {{"optimize", SolveOptimize},
                                 {"replan", SolveReplan},
                                 {"eval", AtOnce<SolveEval>},
                                 {"eq1", AtOnce<SolveEq1>},
                                 {"slots", AtOnce<SolveSlots>},
                                 {"online", AtOnce<SolveOnline>},
                                 {"kvtransfer", AtOnce<SolveKvTransfer>}};

}  // namespace

absl::StatusOr<std::string> Solve(std::string_view text, const SolveOptions& options) {
  LIME_ASSIGN_OR_RETURN(const json problem, ParseJsonObject(text, "problem", kMaxProblemBytes));
  JsonFields fields(problem, "problem");
  const std::string kind = fields.String("kind");
  LIME_RETURN_IF_ERROR(fields.status());
  for (const SolvedKind& known : kKinds) {
    if (known.name != kind) continue;
    LIME_ASSIGN_OR_RETURN(ordered_json answer, known.solve(problem, options));
    RoundNumbers(answer);
    return answer.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  return Invalid("problem: field \"kind\" = \"", kind.substr(0, 80),
                 "\" is none of optimize, eval, replan, eq1, slots, online and kvtransfer");
}

}  // namespace lime
