#include "planner/plan/cluster_plan_json.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "planner/base/json_list.h"
#include "planner/base/json_text.h"
#include "planner/plan/instance/plan_json.h"
#include "planner/plan/sparse_parts.h"

namespace lime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using enum JsonList::Presence;

// Ranges are Validate()'s business; here every finite double and every int64 passes.
constexpr double kHigh = std::numeric_limits<double>::max();
constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxKindBytes = kMaxInt / 16;  // so that their sum is no overflow
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int kVersion = 1;

// Matrices by name; the others are in no part.
constexpr Names<TensorRole, 26> kRoleNames = {{{TensorRole::kQ, "q"},
                                               {TensorRole::kK, "k"},
                                               {TensorRole::kV, "v"},
                                               {TensorRole::kQkvByHead, "qkv_by_head"},
                                               {TensorRole::kO, "o"},
                                               {TensorRole::kQDown, "q_down"},
                                               {TensorRole::kQUp, "q_up"},
                                               {TensorRole::kKvDown, "kv_down"},
                                               {TensorRole::kQkv, "qkv"},
                                               {TensorRole::kZ, "z"},
                                               {TensorRole::kBeta, "beta"},
                                               {TensorRole::kDecay, "decay"},
                                               {TensorRole::kQkvz, "qkvz"},
                                               {TensorRole::kBetaDecay, "beta_decay"},
                                               {TensorRole::kRouter, "router"},
                                               {TensorRole::kSharedScale, "shared_scale"},
                                               {TensorRole::kSharedGate, "shared_gate"},
                                               {TensorRole::kSharedUp, "shared_up"},
                                               {TensorRole::kSharedDown, "shared_down"},
                                               {TensorRole::kGateUp, "gate_up"},
                                               {TensorRole::kGate, "gate"},
                                               {TensorRole::kUp, "up"},
                                               {TensorRole::kDown, "down"},
                                               {TensorRole::kLayerGate, "layer_gate"},
                                               {TensorRole::kLayerUp, "layer_up"},
                                               {TensorRole::kOutput, "output"}}};
// Kinds of blocks with parts.
constexpr auto kPartNames = [] {
  Names<BlockKind, kNumBlockKinds - 1> names{};
  size_t i = 0;
  for (const BlockKindInfo& info : kBlockKinds) {
    if (info.kind != BlockKind::kEmbedding) names.all[i++] = {info.kind, info.name};
  }
  return names;
}();
constexpr Names<EmbeddingPlacement, 3> kEmbeddingNames = {
    {{EmbeddingPlacement::kResident, "resident"}, {EmbeddingPlacement::kByRows, "by_rows"}, {EmbeddingPlacement::kWithHead, "with_head"}}};
constexpr Names<bool, 2> kReadsNames = {{{true, "once"}, {false, "per_microbatch"}}};  // Plan::reads_once

// ["gate", 0, 64], or of an expert ["gate", 0, 64, 5].
absl::StatusOr<MatrixRows> ReadRows(const json& value, const std::string& where) {
  const bool well_formed = value.is_array() && (value.size() == 3 || value.size() == 4) && value[0].is_string() &&
                           std::all_of(value.begin() + 1, value.end(), [](const json& number) { return number.is_number_integer(); });
  const std::optional<TensorRole> role = well_formed ? kRoleNames.Find(value[0].get_ref<const std::string&>()) : std::nullopt;
  if (!role) return Invalid(where, ": rows are not [matrix, begin, end] or [matrix, begin, end, expert]");
  // What is too large for an int64 becomes negative here, and is refused as such.
  MatrixRows rows{.role = *role, .begin = value[1].get<int64_t>(), .end = value[2].get<int64_t>()};
  if (value.size() == 3) return rows;
  const int64_t expert = value[3].get<int64_t>();
  if (expert < 0 || expert >= kMaxPlanExperts)
    return Invalid(where, ": rows are of expert ", expert, ", which is outside 0 to ", kMaxPlanExperts - 1);
  rows.expert = static_cast<int32_t>(expert);
  return rows;
}

ordered_json ToJson(const MatrixRows& rows) {
  ordered_json array = {kRoleNames.Of(rows.role), rows.begin, rows.end};
  if (rows.expert >= 0) array.push_back(rows.expert);
  return array;
}

void ListRows(JsonList& f, std::vector<MatrixRows>& rows) {
  if (!f.reads()) {
    ordered_json array = ordered_json::array();
    for (const MatrixRows& range : rows) array.push_back(ToJson(range));
    return f.WriteOnly("rows", std::move(array));
  }
  for (const json& value : f.from().Array("rows", kMaxRowsPerPart)) {
    const absl::StatusOr<MatrixRows> range = ReadRows(value, f.from().where());
    if (!range.ok()) return f.from().Check(range.status());
    rows.push_back(*range);
  }
}

}  // namespace

static void List(JsonList& f, PlanPart& part) {
  f.Named("block", part.block.kind, kPartNames);
  f.Number("layer", part.block.layer, 0, kMaxInt32, kOptional);
  if (f.reads() ? f.from().Has("kv_end") : part.is_kv()) {
    f.Number("kv_begin", part.kv_begin, 0, kMaxInt, kOptional);
    f.Number("kv_end", part.kv_end, 0, kMaxInt);
  } else {
    ListRows(f, part.rows);
  }
  f.Number("bytes", part.bytes, 0, kMaxInt);
  f.Number("kept_bytes", part.pinned_bytes, 0, kMaxInt, kSparse);
  f.Number("kv_pages", part.kv_pages, 0, kMaxInt, kSparse);
  f.Number("window", part.window.positions, 0, kMaxInt, kSparse);
  f.Number("window_pages", part.window.pages, 0, kMaxInt, kSparse);
  f.Number("state_bytes", part.state_bytes, 0, kMaxInt, kSparse);
  f.Flag("streamed", part.streamed, kSparse);
  f.Number("places", part.places, 0, kMaxInt, kSparse);
  f.Number("window_masks", part.window_masks, 0, kMaxWindowMasks, kSparse);
  f.Number("decider_bits", part.decider_bits, 0, kMaxInt32, kSparse);
  f.Number("decider_directions", part.decider_directions, 0, kMaxInt32, kSparse);
  f.Number("predictor_rank", part.predictor_rank, 0, kMaxInt32, kSparse);
  f.Number("unit_bytes", part.unit_bytes, 0, kMaxInt, kSparse);
  if (f.reads() || part.hosted()) f.Number("host", part.host, -1, kMaxPlanDevices, kOptional);
  f.Number("demand_ms", part.demand_ms, 0, kHigh, kSparse);
  f.Number("prefill_demand_ms", part.prefill_demand_ms, 0, kHigh, kSparse);
  f.Number("hit_share", part.hit_share, 0, 1, kSparse);
  f.Number("chosen_units", part.chosen_units, 0, static_cast<double>(kMaxNeurons), kSparse);
  f.Number("active_units", part.active_units, 0, static_cast<double>(kMaxNeurons), kSparse);
  f.Number("demand_reads", part.demand_reads, 0, static_cast<double>(kMaxNeurons), kSparse);
  f.Number("demand_bytes", part.demand_bytes, 0, kHigh, kSparse);
  f.Number("demand_io_ms", part.demand_io_ms, 0, kHigh, kSparse);
  f.Named("policy", part.policy, kUnitPolicyNames, kSparse);
  f.Number("ahead_places", part.ahead_places, 0, static_cast<int32_t>(kMaxAheadPlaces), kSparse);
  f.Number("decode_ms", part.decode_ms, 0, kHigh);
  f.Number("evicted_ms", part.evicted_ms, 0, kHigh, kSparse);
  f.Number("prefill_ms", part.prefill_ms, 0, kHigh, kSparse);
}

static void List(JsonList& f, PlanMemory& memory) {
  f.Number("runtime", memory.runtime, 0, kMaxKindBytes, kOptional);
  f.Number("activations", memory.activations, 0, kMaxKindBytes, kOptional);
  f.Number("kv", memory.kv, 0, kMaxKindBytes, kOptional);
  f.Number("ring", memory.ring, 0, kMaxKindBytes, kOptional);
  f.Number("weights", memory.weights, 0, kMaxKindBytes, kOptional);
  f.Number("embedding", memory.embedding, 0, kMaxKindBytes, kOptional);
  f.Number("margin", memory.margin, 0, kMaxKindBytes, kOptional);
  f.Number("hosted", memory.hosted, 0, kMaxKindBytes, kSparse);
  f.Number("fetched", memory.fetched, 0, kMaxKindBytes, kSparse);
  f.Number("state", memory.state, 0, kMaxKindBytes, kSparse);
}

static void List(JsonList& f, PlanDevice& device) {
  f.Text("name", device.name);
  f.Text("numerics_id", device.numerics_id, kOptional);
  f.Number("budget", device.budget, 0, kMaxInt);
  f.Object("memory", device.memory);
  f.Number("kv_pages", device.kv_pages, 0, kMaxInt, kOptional);
  f.Number("disk_mb_per_ms", device.disk_mb_per_ms, 0, kHigh, kOptional);
  f.Number("disk_lat_ms", device.disk_lat_ms, 0, kHigh, kOptional);
  f.Number("least_margin", device.least_margin, 0, kMaxKindBytes, kSparse);
  f.Number("max_layer_pages", device.max_layer_pages, 0, kMaxInt, kSparse);
  if (f.reads() || device.kv_host >= 0) f.Number("kv_host", device.kv_host, -1, kMaxPlanDevices, kOptional);
  f.Number("kv_fetch_pieces", device.kv_fetch_pieces, 0, kMaxInt, kSparse);
  if (f.reads() || !device.asks_kv) f.Flag("asks_kv", device.asks_kv, kOptional);
  f.Number("kv_fetch_mb_per_ms", device.kv_fetch_mb_per_ms, 0, kHigh, kSparse);
  f.Number("ask_kv_ms", device.ask_kv_ms, 0, kHigh, kSparse);
}

static void List(JsonList& f, StepTimes& times) {
  f.Number("tx_ms", times.tx_ms, 0, kHigh);
  f.Number("lat_ms", times.lat_ms, 0, kHigh);
  f.Number("embed_rows_ms", times.embed_rows_ms, 0, kHigh, kOptional);
}

static void List(JsonList& f, Prediction& predicted) {
  f.Number("ms_per_step", predicted.ms_per_step, 0, kHigh, kOptional);
  f.Number("ms_per_token", predicted.ms_per_token, 0, kHigh, kOptional);
  f.Number("ttft_ms", predicted.ttft_ms, 0, kHigh, kOptional);
  f.Number("lower_bound_ms", predicted.lower_bound_ms, 0, kHigh, kOptional);
}

static void List(JsonList& f, Stage& stage, const Plan& plan) {
  List(f, stage);
  if (f.reads()) return;
  f.WriteOnly("first", PartName(plan, stage.lo));
  f.WriteOnly("last", PartName(plan, stage.hi - 1));
}

static void List(JsonList& f, Plan& plan) {
  int64_t version = kVersion;
  f.Number("version", version, kVersion, kVersion);
  f.Number("epoch", plan.epoch, 0, kMaxInt);
  f.Text("model_key", plan.model_key, kOptional);
  f.Text("model_name", plan.model_name, kOptional);
  f.Number("vocab_size", plan.vocab_size, 1, kMaxInt);
  f.Number("context", plan.context, 1, kMaxInt);
  f.Number("sequences", plan.sequences, 1, kMaxInt32);
  f.Number("microbatches", plan.microbatches, 1, kMaxInt32);
  f.Number("batch", plan.batch, 1, kMaxInt32);
  f.Named("reads", plan.reads_once, kReadsNames, kOptional);
  f.Named("embedding", plan.embedding, kEmbeddingNames, kOptional);
  f.Number("embedding_bytes", plan.embedding_bytes, 0, kMaxInt);
  f.Number("embedding_kept_bytes", plan.embedding_pinned_bytes, 0, kMaxInt, kOptional);
  f.Number("page_bytes", plan.page_bytes, 1, kMaxInt);
  f.Number("prompt_tokens", plan.prompt_tokens, 0, kMaxInt, kOptional);
  f.Number("prefill_chunk", plan.prefill_chunk, 0, kMaxInt, kOptional);
  f.Number("chunks_per_sweep", plan.chunks_per_sweep, 0, kMaxInt32, kOptional);
  f.Object("predicted", plan.predicted, kOptional);
  f.Object("decode", plan.decode, kOptional);
  f.Object("prefill", plan.prefill, kOptional);
  f.Number("logit_rows", plan.logit_rows, 0, kMaxInt32, kSparse);
  f.Number("state_snapshots", plan.state_snapshots, 0, kMaxInt32, kSparse);
  f.Text("predictor", plan.predictor, kSparse);
  f.Number("kept_positions", plan.retained_positions, 0, kMaxInt, kSparse);
  f.Each("devices", plan.devices, kMaxPlanDevices);
  f.Each("stages", plan.stages, kMaxPlanBlocks, kRequired, plan);
  f.Each("parts", plan.parts, kMaxPlanBlocks);
}

absl::StatusOr<Plan> PlanFromJson(const json& object, std::string_view name) {
  const std::string where(name);
  if (!object.is_object()) return Invalid(where, " is not an object");
  JsonFields fields(object, where);
  auto plan = JsonList::ReadObject<Plan>(fields);
  LIME_RETURN_IF_ERROR(fields.status());
  const absl::Status valid = plan.Validate();
  if (!valid.ok()) return Invalid(where, ": ", valid.message());
  return plan;
}

absl::StatusOr<Plan> ParsePlan(std::string_view text, std::string_view where) {
  LIME_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, where));
  return PlanFromJson(root, where);
}

ordered_json ToJson(const Plan& plan) {
  return JsonList::WriteObject(plan);
}

std::string ToJsonText(const Plan& plan) {
  return ToJson(plan).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace lime
