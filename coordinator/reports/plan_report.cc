#include "coordinator/reports/plan_report.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "planner/evaluation/evaluator.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/sim/simulator.h"

namespace lime::cli {
namespace {

using nlohmann::ordered_json;

// Bytes of every block of the model: the sum of its parts, without KV.
std::map<std::pair<BlockKind, int32_t>, Bytes> BlockBytes(const Plan& plan) {
  std::map<std::pair<BlockKind, int32_t>, Bytes> bytes;
  for (const PlanPart& part : plan.parts) bytes[{part.block.kind, part.block.layer}] += part.is_kv() ? 0 : part.bytes;
  return bytes;
}

int ReadsOf(const Plan& plan) {
  return StaysTogether(plan, plan.microbatches) ? 1 : plan.microbatches;
}

void AddPlaces(const PlanPart& part, double share, DeviceUse& use) {
  const Bytes kept = MemoryOf(part);
  use.resident_blocks += part.on_demand() && part.bytes > 0 ? share * static_cast<double>(kept) / static_cast<double>(part.bytes) : share;
  use.resident_bytes += kept;
}

// The device of the stage waits for its hosts together, for longer than its own experts take.
void AddHostedPart(const Plan& plan, int p, double share, DeviceUse& owner, DeviceUse& host) {
  owner.communication_ms += AddedMs(plan, p) * plan.microbatches;
  AddPlaces(plan.parts[p], share, host);
}

void AddStage(const Plan& plan, int index, const std::map<std::pair<BlockKind, int32_t>, Bytes>& block_bytes,
              std::vector<DeviceUse>& uses) {
  const Stage& stage = plan.stages[index];
  DeviceUse& use = uses[static_cast<size_t>(stage.device)];
  const PlanDevice& device = plan.devices[stage.device];
  use.stages.push_back(index);
  const int64_t layer_pages = ResidencyOf(plan).layer_pages;
  for (int p = stage.lo; p < stage.hi; ++p) {
    const PlanPart& part = plan.parts[p];
    const Bytes whole = block_bytes.at({part.block.kind, part.block.layer});
    const double share = whole > 0 && !part.is_kv() ? static_cast<double>(part.bytes) / static_cast<double>(whole) : 0;
    if (part.hosted()) {
      AddHostedPart(plan, p, share, use, uses[static_cast<size_t>(part.host)]);
      continue;
    }
    if (WaitsForKv(plan, p)) {
      use.communication_ms += WaitMs(plan, p, layer_pages) * plan.microbatches;
    } else {
      use.compute_ms += part.decode_ms * plan.microbatches;
    }
    if (part.streamed) {
      use.streamed_blocks += share;
      use.streamed_bytes += part.bytes * ReadsOf(plan);
      use.load_ms += (static_cast<double>(part.bytes) / 1e6 / device.disk_mb_per_ms + device.disk_lat_ms) * ReadsOf(plan);
    } else if (!part.is_kv()) {  // KV counts with the pages
      AddPlaces(part, share, use);
    }
  }
  const bool last = index + 1 == static_cast<int>(plan.stages.size());
  const int next = plan.stages[last ? 0 : index + 1].device;
  if (next != stage.device)
    use.communication_ms += plan.microbatches * (last ? plan.decode.lat_ms : plan.decode.tx_ms + plan.decode.lat_ms);
}

// Adds the waits of the steady steps, or of fewer steps if their spans would need hundreds of
// megabytes.
absl::Status AddWaits(const Plan& plan, std::vector<DeviceUse>& uses) {
  constexpr int64_t kMostRuns = 1 << 17, kManyRuns = 1 << 15;
  constexpr int kFirst = Evaluator::kSettledStep + 1;
  const int64_t runs = int64_t{plan.NumParts()} * plan.microbatches;
  if (runs > kMostRuns) return absl::OkStatus();
  const int steps = runs > kManyRuns ? kFirst + 2 : Evaluator::kSteps;
  LIME_ASSIGN_OR_RETURN(const SimulationResult simulated, SimulateDecode(plan, {.steps = steps}));
  for (DeviceUse& use : uses) use.uncovered_ms = 0;
  for (const TimelineSpan& span : simulated.timeline.spans) {
    if (span.kind == TimelineSpan::Kind::kWaitWeights && span.step >= kFirst)
      *uses[span.device].uncovered_ms += (span.end_ms - span.begin_ms) / (steps - kFirst);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<DeviceUse>> UsesOf(const Plan& plan) {
  std::vector<DeviceUse> uses(plan.devices.size());
  const auto block_bytes = BlockBytes(plan);
  for (int j = 0; j < static_cast<int>(plan.stages.size()); ++j) AddStage(plan, j, block_bytes, uses);
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    uses[d].units = UnitUseOf(plan, d);
    uses[d].neurons = NeuronUseOf(plan, d);
    uses[d].load_ms += uses[d].units.read_ms + uses[d].neurons.read_ms;
  }
  if (plan.embedding == EmbeddingPlacement::kByRows)
    uses[plan.stages.front().device].load_ms += plan.decode.embed_rows_ms * plan.microbatches;
  LIME_RETURN_IF_ERROR(AddWaits(plan, uses));
  return uses;
}

std::string NoReadAheadText(const Plan& plan, int32_t ahead_places) {
  const auto lacks_some = [](const PlanPart& part) { return part.on_demand() && part.places < std::ssize(UnitsIn(part.rows)); };
  const auto reads_ahead = [&](const PlanPart& part) { return lacks_some(part) && part.ahead_places > 0; };
  if (ahead_places == 0 || std::ranges::any_of(plan.parts, reads_ahead)) return "";
  const auto streams = [](const PlanPart& part) { return part.block.kind == BlockKind::kExperts && part.streamed; };
  const char* const why = std::ranges::any_of(plan.parts, lacks_some) ? "has a place for one expert of each layer only"
                          : std::ranges::any_of(plan.parts, streams)  ? "streams all experts"
                                                                      : "keeps all experts in memory";
  return absl::StrCat("--read-ahead ", ahead_places, " has no effect, because this plan ", why,
                      "; --experts N, with N from 2 to the experts of a layer less 1, has places for some of them");
}

std::string StageText(const Plan& plan, int stage) {
  const auto [device, lo, hi] = plan.stages[stage];
  const PlanPart &first = plan.parts[lo], &last = plan.parts[hi - 1];
  if (first.block.kind == BlockKind::kHead) {
    const bool begins = lo == 0 || plan.parts[lo - 1].block.kind != BlockKind::kHead;
    const bool whole = begins && hi == plan.NumParts();
    return whole ? "head" : absl::StrCat("head ", HeadRange(first).begin, "-", HeadRange(last).end - 1);
  }
  int end = hi - 1;  // the last part outside the head
  while (plan.parts[end].block.kind == BlockKind::kHead) --end;
  const BlockId from = first.block, to = plan.parts[end].block;
  const bool from_half = IsMlpHalf(from.kind), to_half = IsAttentionHalf(to.kind);
  std::string text = absl::StrCat(from.layer, from_half || (to_half && from.layer == to.layer) ? (from_half ? "m" : "a") : "");
  if (to.layer != from.layer) absl::StrAppend(&text, "-", to.layer, to_half ? "a" : "");
  if (end == hi - 1) return text;
  return absl::StrCat(text, hi == plan.NumParts() ? "+head" : absl::StrCat("+head 0-", HeadRange(last).end - 1));
}

int NumRounds(const Plan& plan) {
  std::vector<int> visits(plan.devices.size());
  for (const Stage& stage : plan.stages) ++visits[stage.device];
  return visits.empty() ? 0 : *std::ranges::max_element(visits);
}

int FastestAlone(const PlanReport& report) {
  int fastest = -1;
  for (int d = 0; d < static_cast<int>(report.explanations.size()); ++d) {
    const auto& alone = report.explanations[d].alone_ms;
    if (alone && (fastest < 0 || *alone < *report.explanations[fastest].alone_ms)) fastest = d;
  }
  return fastest;
}

namespace {

ordered_json MemoryJson(const PlanMemory& m) {
  ordered_json memory = {{"runtime_bytes", m.runtime}, {"activation_bytes", m.activations}, {"kv_bytes", m.kv},
                         {"ring_bytes", m.ring},       {"weight_bytes", m.weights},         {"embedding_bytes", m.embedding},
                         {"hosted_bytes", m.hosted},   {"fetched_bytes", m.fetched},        {"free_bytes", m.margin}};
  if (m.state > 0) memory["state_bytes"] = m.state;
  return memory;
}

// Experts on demand.
ordered_json UnitsJson(const UnitUse& use) {
  return {{"kept", use.places}, {"of", use.units}, {"expected_hit_share", use.hit_share}, {"expected_bytes_per_step", use.bytes}};
}

// Sparse MLPs.
ordered_json NeuronsJson(const NeuronUse& use) {
  ordered_json out = {{"kept", use.rows}, {"of", use.neurons}, {"layers", use.layers}, {"expected_bytes_per_step", use.bytes}};
  if (use.certified > 0) out["certified_layers"] = use.certified;
  if (!use.calibrated) return out;
  if (use.certified > 0) out["expected_computed_share"] = use.computed / static_cast<double>(use.neurons);
  out["expected_active_share"] = use.active / static_cast<double>(use.neurons);
  out["expected_loads_per_step"] = use.loads;
  out["expected_reads_per_step"] = use.reads;
  out["expected_io_ms_per_step"] = use.read_ms;
  return out;
}

ordered_json DeviceJson(const PlanReport& report, size_t d) {
  const PlanDevice& device = report.plan.devices[d];
  const DeviceUse& use = report.uses[d];
  const double tokens = report.TokensPerStep();
  ordered_json stages = ordered_json::array();
  for (const int stage : use.stages) stages.push_back(StageText(report.plan, stage));
  ordered_json out = {{"name", device.name},
                      {"used", HasPart(report.plan, static_cast<int>(d))},
                      {"stages", std::move(stages)},
                      {"budget_bytes", device.budget},
                      {"memory", MemoryJson(device.memory)},
                      {"resident_bytes", use.resident_bytes},
                      {"resident_blocks", use.resident_blocks},
                      {"streamed_bytes_per_step", use.streamed_bytes},
                      {"streamed_blocks", use.streamed_blocks},
                      {"compute_ms_per_token", use.compute_ms / tokens},
                      {"load_ms_per_token", use.load_ms / tokens},
                      {"communication_ms_per_token", use.communication_ms / tokens},
                      {"uncovered_ms_per_token", use.uncovered_ms ? ordered_json(*use.uncovered_ms / tokens) : ordered_json()}};
  if (use.units.units > 0) out["experts"] = UnitsJson(use.units);
  if (use.neurons.layers > 0) out["neurons"] = NeuronsJson(use.neurons);
  if (d >= report.explanations.size()) return out;
  const DeviceExplanation& why = report.explanations[d];
  const auto optional = [&](const std::optional<double>& ms) { return ms ? ordered_json(*ms / tokens) : ordered_json(); };
  out["why"] = why.why;
  out[why.used ? "ms_per_token_without_it" : "ms_per_token_with_a_layer_on_it"] = optional(why.otherwise_ms);
  out["one_more_gib_saves_ms_per_token"] = optional(why.one_more_gib_ms);
  out["alone_ms_per_token"] = optional(why.alone_ms);
  return out;
}

}  // namespace

ordered_json ToJson(const PlanReport& report) {
  const Plan& plan = report.plan;
  const Prediction& predicted = plan.predicted;
  ordered_json devices = ordered_json::array();
  for (size_t d = 0; d < plan.devices.size(); ++d) devices.push_back(DeviceJson(report, d));
  const int alone = FastestAlone(report);
  ordered_json out = {{"feasible", true},
                      {"ms_per_token", predicted.ms_per_token},
                      {"lower_bound_ms_per_token", predicted.lower_bound_ms / report.TokensPerStep()},
                      {"ms_per_step", predicted.ms_per_step},
                      {"ttft_ms", plan.prompt_tokens > 0 ? ordered_json(predicted.ttft_ms) : ordered_json()},
                      {"strategy", report.strategy},
                      {"model", plan.model_name},
                      {"tokens", plan.context},
                      {"sequences", plan.sequences},
                      {"microbatches", plan.microbatches},
                      {"batch", plan.batch},
                      {"rounds", NumRounds(plan)},
                      {"fits_on_one_device", alone < 0 ? ordered_json() : ordered_json(plan.devices[alone].name)},
                      {"devices", std::move(devices)},
                      {"notes", report.notes},
                      {"plan", lime::ToJson(plan)}};
  if (report.sparsity_why.empty() && !HasSparseParts(plan)) return out;
  out["sparsity"] = NameOfSparsity(plan);
  if (!report.sparsity_why.empty()) out["sparsity_why"] = report.sparsity_why;
  return out;
}

}  // namespace lime::cli
