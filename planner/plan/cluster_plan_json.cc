#include "planner/plan/cluster_plan_json.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"
#include "planner/plan/device_profile.h"
#include "planner/plan/plan_json.h"

namespace lime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Ranges are Validate()'s business; here every finite double and every int64 passes.
constexpr double kHigh = std::numeric_limits<double>::max();
constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int kVersion = 1;

// Matrices by name; the others are in no part.
constexpr std::array<std::pair<const char*, TensorRole>, 8> kRoles = {{{"q", TensorRole::kQ},
                                                                       {"k", TensorRole::kK},
                                                                       {"v", TensorRole::kV},
                                                                       {"o", TensorRole::kO},
                                                                       {"gate", TensorRole::kGate},
                                                                       {"up", TensorRole::kUp},
                                                                       {"down", TensorRole::kDown},
                                                                       {"output", TensorRole::kOutput}}};

const char* RoleName(TensorRole role) {
  for (const auto& [name, other] : kRoles) {
    if (other == role) return name;
  }
  return "?";
}

std::optional<TensorRole> ParseRole(const json& name) {
  for (const auto& [other, role] : kRoles) {
    if (name.is_string() && name.get_ref<const std::string&>() == other) return role;
  }
  return std::nullopt;
}

constexpr std::array<std::pair<const char*, EmbeddingPlacement>, 3> kPlacements = {
    {{"resident", EmbeddingPlacement::kResident}, {"by_rows", EmbeddingPlacement::kByRows}, {"with_head", EmbeddingPlacement::kWithHead}}};

absl::StatusOr<EmbeddingPlacement> ParseEmbedding(JsonFields& fields, const std::string& where) {
  const std::string text = fields.StringOr("embedding", "resident");
  for (const auto& [name, placement] : kPlacements) {
    if (text == name) return placement;
  }
  return Invalid(where, ": field \"embedding\" is none of resident, by_rows and with_head");
}

const char* EmbeddingName(EmbeddingPlacement embedding) {
  return std::ranges::find(kPlacements, embedding, &std::pair<const char*, EmbeddingPlacement>::second)->first;
}

absl::StatusOr<bool> ParseChoice(JsonFields& fields, const std::string& key, const std::string& no, const std::string& yes,
                                 const std::string& where) {
  const std::string text = fields.StringOr(key, no);
  if (text == yes) return true;
  return text == no ? absl::StatusOr<bool>(false) : Invalid(where, ": field \"", key, "\" is neither ", no, " nor ", yes);
}

// ["gate", 0, 64]
absl::StatusOr<MatrixRows> ReadRows(const json& value, const std::string& where) {
  const auto wrong = [&] { return Invalid(where, ": rows are no [matrix, begin, end]"); };
  if (!value.is_array() || value.size() != 3 || !value[1].is_number_integer() || !value[2].is_number_integer()) return wrong();
  const std::optional<TensorRole> role = ParseRole(value[0]);
  if (!role) return wrong();
  // What is too large for an int64 becomes negative here, and is refused as such.
  return MatrixRows{.role = *role, .begin = value[1].get<int64_t>(), .end = value[2].get<int64_t>()};
}

absl::StatusOr<PlanPart> ReadPart(JsonFields& fields, const std::string& where) {
  PlanPart part;
  const std::optional<BlockKind> kind = kKindNames.Find(fields.String("block"));
  part.block.layer = static_cast<int32_t>(fields.IntOr("layer", 0, 0, kMaxInt32));
  const json none = json::array();
  const json& rows = fields.Has("kv_end") ? none : fields.Array("rows", kMaxRowsPerPart);
  part.kv_begin = fields.IntOr("kv_begin", 0, 0, kMaxInt);
  part.kv_end = fields.IntOr("kv_end", 0, 0, kMaxInt);
  part.bytes = fields.Int("bytes", 0, kMaxInt);
  part.kept_bytes = fields.IntOr("kept_bytes", 0, 0, kMaxInt);
  part.kv_pages = fields.IntOr("kv_pages", 0, 0, kMaxInt);
  part.streamed = fields.BoolOr("streamed", false);
  part.decode_ms = fields.Double("decode_ms", 0, kHigh);
  part.evicted_ms = fields.DoubleOr("evicted_ms", 0, 0, kHigh);
  part.prefill_ms = fields.DoubleOr("prefill_ms", 0, 0, kHigh);
  LIME_RETURN_IF_ERROR(fields.status());
  if (!kind || *kind == BlockKind::kEmbedding) return Invalid(where, ": field \"block\" is none of attention, mlp and head");
  part.block.kind = *kind;
  for (const json& value : rows) {
    LIME_ASSIGN_OR_RETURN(const MatrixRows range, ReadRows(value, where));
    part.rows.push_back(range);
  }
  return part;
}

absl::StatusOr<PlanDevice> ReadDevice(JsonFields& fields, const std::string& where) {
  PlanDevice device;
  device.name = fields.String("name");
  device.numerics_id = fields.StringOr("numerics_id", "");
  device.budget = fields.Int("budget", 0, kMaxInt);
  device.least_margin = fields.IntOr("least_margin", 0, 0, kMaxInt / 8);
  device.kv_pages = fields.IntOr("kv_pages", 0, 0, kMaxInt);
  device.max_layer_pages = fields.IntOr("max_layer_pages", 0, 0, kMaxInt);
  device.kv_host = static_cast<int32_t>(fields.IntOr("kv_host", -1, -1, kMaxPlanDevices));
  device.kv_fetch_pieces = fields.IntOr("kv_fetch_pieces", 0, 0, kMaxInt);
  device.asks_kv = fields.BoolOr("asks_kv", true);
  device.ask_kv_ms = fields.DoubleOr("ask_kv_ms", 0, 0, kHigh);
  device.kv_fetch_mb_per_ms = fields.DoubleOr("kv_fetch_mb_per_ms", 0, 0, kHigh);
  device.disk_mb_per_ms = fields.DoubleOr("disk_mb_per_ms", 0, 0, kHigh);
  device.disk_lat_ms = fields.DoubleOr("disk_lat_ms", 0, 0, kHigh);
  JsonFields memory(fields.Object("memory"), where + ".memory");
  const auto bytes = [&](const char* kind) { return memory.IntOr(kind, 0, 0, kMaxInt / 8); };
  device.memory = {.runtime = bytes("runtime"),
                   .activations = bytes("activations"),
                   .kv = bytes("kv"),
                   .ring = bytes("ring"),
                   .weights = bytes("weights"),
                   .embedding = bytes("embedding"),
                   .hosted = bytes("hosted"),
                   .fetched = bytes("fetched"),
                   .margin = bytes("margin")};
  LIME_RETURN_IF_ERROR(memory.status());
  return device;
}

absl::Status ReadTimes(JsonFields& fields, const std::string& key, const std::string& where, StepTimes& times) {
  if (!fields.Has(key)) return absl::OkStatus();
  JsonFields inner(fields.Object(key), absl::StrCat(where, ".", key));
  times = {.tx_ms = inner.Double("tx_ms", 0, kHigh),
           .lat_ms = inner.Double("lat_ms", 0, kHigh),
           .embed_rows_ms = inner.DoubleOr("embed_rows_ms", 0, 0, kHigh)};
  return inner.status();
}

absl::Status ReadPrediction(JsonFields& fields, const std::string& where, Prediction& predicted) {
  if (!fields.Has("predicted")) return absl::OkStatus();
  JsonFields inner(fields.Object("predicted"), where + ".predicted");
  predicted = {.ms_per_step = inner.DoubleOr("ms_per_step", 0, 0, kHigh),
               .ms_per_token = inner.DoubleOr("ms_per_token", 0, 0, kHigh),
               .ttft_ms = inner.DoubleOr("ttft_ms", 0, 0, kHigh),
               .lower_bound_ms = inner.DoubleOr("lower_bound_ms", 0, 0, kHigh)};
  return inner.status();
}

absl::Status ReadHead(JsonFields& fields, const std::string& where, Plan& plan) {
  fields.Int("version", kVersion, kVersion);
  plan.epoch = fields.Int("epoch", 0, kMaxInt);
  plan.model_key = fields.StringOr("model_key", "");
  plan.model_name = fields.StringOr("model_name", "");
  plan.vocab_size = fields.Int("vocab_size", 1, kMaxInt);
  plan.context = fields.Int("context", 1, kMaxInt);
  plan.kept_positions = fields.IntOr("kept_positions", 0, 0, kMaxInt);
  plan.sequences = static_cast<int32_t>(fields.Int("sequences", 1, kMaxInt32));
  plan.microbatches = static_cast<int32_t>(fields.Int("microbatches", 1, kMaxInt32));
  plan.batch = static_cast<int32_t>(fields.Int("batch", 1, kMaxInt32));
  plan.logit_rows = static_cast<int32_t>(fields.IntOr("logit_rows", 0, 0, kMaxInt32));
  plan.embedding_bytes = fields.Int("embedding_bytes", 0, kMaxInt);
  plan.embedding_kept_bytes = fields.IntOr("embedding_kept_bytes", 0, 0, kMaxInt);
  plan.page_bytes = fields.Int("page_bytes", 1, kMaxInt);
  plan.prompt_tokens = fields.IntOr("prompt_tokens", 0, 0, kMaxInt);
  plan.prefill_chunk = fields.IntOr("prefill_chunk", 0, 0, kMaxInt);
  plan.chunks_per_sweep = static_cast<int32_t>(fields.IntOr("chunks_per_sweep", 0, 0, kMaxInt32));
  LIME_ASSIGN_OR_RETURN(const bool again, ParseChoice(fields, "reads", "once", "per_microbatch", where));
  LIME_ASSIGN_OR_RETURN(plan.embedding, ParseEmbedding(fields, where));
  plan.reads = again ? ReadsPerStep::kPerMicrobatch : ReadsPerStep::kOnce;
  LIME_RETURN_IF_ERROR(ReadTimes(fields, "decode", where, plan.decode));
  LIME_RETURN_IF_ERROR(ReadTimes(fields, "prefill", where, plan.prefill));
  LIME_RETURN_IF_ERROR(ReadPrediction(fields, where, plan.predicted));
  return fields.status();
}

ordered_json PartToJson(const PlanPart& part) {
  ordered_json out = {{"block", kKindNames.Of(part.block.kind)}, {"layer", part.block.layer}};
  if (part.is_kv()) {
    out["kv_begin"] = part.kv_begin;
    out["kv_end"] = part.kv_end;
  } else {
    out["rows"] = ordered_json::array();
    for (const MatrixRows& range : part.rows) out["rows"].push_back({RoleName(range.role), range.begin, range.end});
  }
  out["bytes"] = part.bytes;
  if (part.kept_bytes > 0) out["kept_bytes"] = part.kept_bytes;
  if (part.kv_pages > 0) out["kv_pages"] = part.kv_pages;
  if (part.streamed) out["streamed"] = true;
  out["decode_ms"] = part.decode_ms;
  if (part.evicted_ms > 0) out["evicted_ms"] = part.evicted_ms;
  if (part.prefill_ms > 0) out["prefill_ms"] = part.prefill_ms;
  return out;
}

ordered_json DeviceToJson(const PlanDevice& device) {
  const PlanMemory& m = device.memory;
  ordered_json out = {{"name", device.name},
                      {"numerics_id", device.numerics_id},
                      {"budget", device.budget},
                      {"memory",
                       {{"runtime", m.runtime},
                        {"activations", m.activations},
                        {"kv", m.kv},
                        {"ring", m.ring},
                        {"weights", m.weights},
                        {"embedding", m.embedding},
                        {"margin", m.margin}}},
                      {"kv_pages", device.kv_pages},
                      {"disk_mb_per_ms", device.disk_mb_per_ms},
                      {"disk_lat_ms", device.disk_lat_ms}};
  if (device.least_margin > 0) out["least_margin"] = device.least_margin;
  if (device.max_layer_pages > 0) out["max_layer_pages"] = device.max_layer_pages;
  if (m.hosted > 0) out["memory"]["hosted"] = m.hosted;
  if (m.fetched > 0) out["memory"]["fetched"] = m.fetched;
  if (device.kv_host >= 0) out["kv_host"] = device.kv_host;
  if (device.kv_fetch_pieces > 0) out["kv_fetch_pieces"] = device.kv_fetch_pieces;
  if (!device.asks_kv) out["asks_kv"] = false;
  if (device.kv_fetch_mb_per_ms > 0) out["kv_fetch_mb_per_ms"] = device.kv_fetch_mb_per_ms;
  if (device.ask_kv_ms > 0) out["ask_kv_ms"] = device.ask_kv_ms;
  return out;
}

ordered_json TimesToJson(const StepTimes& times) {
  return {{"tx_ms", times.tx_ms}, {"lat_ms", times.lat_ms}, {"embed_rows_ms", times.embed_rows_ms}};
}

ordered_json HeadToJson(const Plan& plan) {
  ordered_json out = {{"version", kVersion},
                      {"epoch", plan.epoch},
                      {"model_key", plan.model_key},
                      {"model_name", plan.model_name},
                      {"vocab_size", plan.vocab_size},
                      {"context", plan.context},
                      {"sequences", plan.sequences},
                      {"microbatches", plan.microbatches},
                      {"batch", plan.batch},
                      {"reads", plan.reads == ReadsPerStep::kOnce ? "once" : "per_microbatch"},
                      {"embedding", EmbeddingName(plan.embedding)},
                      {"embedding_bytes", plan.embedding_bytes},
                      {"embedding_kept_bytes", plan.embedding_kept_bytes},
                      {"page_bytes", plan.page_bytes},
                      {"prompt_tokens", plan.prompt_tokens},
                      {"prefill_chunk", plan.prefill_chunk},
                      {"chunks_per_sweep", plan.chunks_per_sweep},
                      {"predicted",
                       {{"ms_per_step", plan.predicted.ms_per_step},
                        {"ms_per_token", plan.predicted.ms_per_token},
                        {"ttft_ms", plan.predicted.ttft_ms},
                        {"lower_bound_ms", plan.predicted.lower_bound_ms}}},
                      {"decode", TimesToJson(plan.decode)},
                      {"prefill", TimesToJson(plan.prefill)}};
  if (plan.logit_rows > 0) out["logit_rows"] = plan.logit_rows;
  if (plan.kept_positions > 0) out["kept_positions"] = plan.kept_positions;
  return out;
}

}  // namespace

absl::StatusOr<Plan> PlanFromJson(const json& object, std::string_view name) {
  const std::string where(name);
  if (!object.is_object()) return Invalid(where, " is not an object");
  JsonFields fields(object, where);
  Plan plan;
  LIME_RETURN_IF_ERROR(ReadHead(fields, where, plan));
  LIME_ASSIGN_OR_RETURN(plan.devices, ReadObjects<PlanDevice>(fields, "devices", kMaxPlanDevices, where + ": ", ReadDevice));
  LIME_ASSIGN_OR_RETURN(plan.parts, ReadObjects<PlanPart>(fields, "parts", kMaxPlanBlocks, where + ": ", ReadPart));
  LIME_ASSIGN_OR_RETURN(plan.stages, ReadObjects<Stage>(fields, "stages", kMaxPlanBlocks, where + ": ", ReadStage));
  const absl::Status valid = plan.Validate();
  if (!valid.ok()) return Invalid(where, ": ", valid.message());
  return plan;
}

absl::StatusOr<Plan> ParsePlan(std::string_view text, std::string_view where) {
  LIME_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, where));
  return PlanFromJson(root, where);
}

ordered_json ToJson(const Plan& plan) {
  ordered_json out = HeadToJson(plan);
  out["devices"] = ordered_json::array();
  for (const PlanDevice& device : plan.devices) out["devices"].push_back(DeviceToJson(device));
  out["stages"] = ordered_json::array();
  for (const Stage& stage : plan.stages) {
    out["stages"].push_back({{"device", stage.device},
                             {"lo", stage.lo},
                             {"hi", stage.hi},
                             {"first", PartName(plan, stage.lo)},
                             {"last", PartName(plan, stage.hi - 1)}});
  }
  out["parts"] = ordered_json::array();
  for (const PlanPart& part : plan.parts) out["parts"].push_back(PartToJson(part));
  return out;
}

std::string ToJsonText(const Plan& plan) {
  return ToJson(plan).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace lime
