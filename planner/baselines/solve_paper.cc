#include "planner/baselines/solve_paper.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/baselines/closed_form.h"
#include "planner/baselines/online_memory.h"
#include "planner/kv/hosting/kv_transfer.h"
#include "planner/plan/instance/plan_json.h"

namespace lime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Answer = absl::StatusOr<ordered_json>;

constexpr double kMax = kMaxPlanNumber;
constexpr int64_t kMaxCount = 1'000'000'000'000'000;  // exact as a double
// Smallest divisor; quotients of two fields cannot overflow.
constexpr double kTiny = 1e-15;

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
  OffloadSlotProblem slots;
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
  const OffloadSlotShares shares = ShareOffloadSlots(slots);
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

}  // namespace

std::optional<Answer> SolvePaper(std::string_view kind, const json& problem) {
  if (kind == "eq1") return SolveEq1(problem);
  if (kind == "slots") return SolveSlots(problem);
  if (kind == "online") return SolveOnline(problem);
  if (kind == "kvtransfer") return SolveKvTransfer(problem);
  return std::nullopt;
}

}  // namespace lime
