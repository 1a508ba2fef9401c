#include "planner/plan/instance/plan_json.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "planner/base/json_list.h"

namespace lime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Ranges are Validate()'s business: here every finite double passes.
constexpr double kHighNumber = std::numeric_limits<double>::max();
constexpr double kLow = -kHighNumber;
constexpr int64_t kMaxNumber = std::numeric_limits<int32_t>::max();

std::optional<Instance::Kind> KindOfLetter(const std::string& letter) {
  for (const auto kind : {Instance::Kind::kAttention, Instance::Kind::kMlp, Instance::Kind::kHead, Instance::Kind::kLayer}) {
    if (letter.size() == 1 && letter[0] == KindLetter(kind)) return kind;
  }
  return std::nullopt;
}

absl::StatusOr<Instance::Block> ReadBlock(JsonFields& fields, const std::string& where) {
  Instance::Block block;
  const std::string letter = fields.String("kind");
  block.layer = static_cast<int32_t>(fields.IntOr("layer", 0, -1, kMaxNumber));
  block.mb = fields.Double("mb", kLow, kHighNumber);
  block.kv_mb = fields.DoubleOr("kv_mb", 0, kLow, kHighNumber);
  LIME_RETURN_IF_ERROR(fields.status());
  const std::optional<Instance::Kind> kind = KindOfLetter(letter);
  if (!kind) return Invalid(where, ": field \"kind\" is none of A, M, H and L");
  block.kind = *kind;
  return block;
}

absl::StatusOr<int32_t> ReadBatch(const std::string& key, const std::string& where) {
  int32_t batch = 0;
  if (absl::SimpleAtoi(key, &batch) && batch >= 1 && batch <= kMaxMicrobatches) return batch;
  return Invalid(where, ": \"", key.substr(0, 80), "\" is not a batch size of 1 to ", kMaxMicrobatches);
}

absl::Status ReadTimesByBatch(JsonFields& fields, const std::string& where, Instance::Device& device) {
  const json& by_batch = fields.Object("comp_ms_by_batch");
  LIME_RETURN_IF_ERROR(fields.status());
  JsonFields times(by_batch, absl::StrCat(where, ".comp_ms_by_batch"));
  for (const auto& [key, value] : by_batch.items()) {
    LIME_ASSIGN_OR_RETURN(const int32_t batch, ReadBatch(key, where));
    device.comp_ms_by_batch[batch] = times.Doubles(key, kLow, kHighNumber, kMaxPlanBlocks);
  }
  return times.status();
}

absl::StatusOr<Instance::Device> ReadDevice(JsonFields& fields, const std::string& where) {
  Instance::Device device;
  device.name = fields.StringOr("name", "");
  device.mem_mb = fields.Double("mem_mb", kLow, kHighNumber);
  device.disk_mb_per_ms = fields.Double("disk_mb_per_ms", kLow, kHighNumber);
  device.disk_lat_ms = fields.DoubleOr("disk_lat_ms", 0, kLow, kHighNumber);
  if (fields.Has("comp_ms_by_batch")) LIME_RETURN_IF_ERROR(ReadTimesByBatch(fields, where, device));
  if (!fields.Has("comp_ms") && !device.comp_ms_by_batch.empty()) {
    device.comp_ms = device.comp_ms_by_batch.begin()->second;
  } else {
    device.comp_ms = fields.Doubles("comp_ms", kLow, kHighNumber, kMaxPlanBlocks);
  }
  if (fields.Has("embed_rows_ms")) device.embed_rows_ms = fields.Double("embed_rows_ms", kLow, kHighNumber);
  return device;
}

absl::StatusOr<Instance::Net> ReadNet(const json& object) {
  JsonFields fields(object, "instance.net");
  Instance::Net net;
  if (fields.Has("tx_ms_by_batch")) {
    const json& by_batch = fields.Object("tx_ms_by_batch");
    JsonFields times(by_batch, "instance.net.tx_ms_by_batch");
    for (const auto& [key, value] : by_batch.items()) {
      LIME_ASSIGN_OR_RETURN(const int32_t batch, ReadBatch(key, "instance.net.tx_ms_by_batch"));
      net.tx_ms_by_batch[batch] = times.Double(key, kLow, kHighNumber);
    }
    LIME_RETURN_IF_ERROR(times.status());
  }
  const bool implied = !fields.Has("tx_ms") && !net.tx_ms_by_batch.empty();
  net.tx_ms = implied ? net.tx_ms_by_batch.begin()->second : fields.Double("tx_ms", kLow, kHighNumber);
  net.lat_ms = fields.Double("lat_ms", kLow, kHighNumber);
  LIME_RETURN_IF_ERROR(fields.status());
  return net;
}

absl::StatusOr<Stage> ReadStage(JsonFields& fields, const std::string&) {
  return JsonList::ReadObject<Stage>(fields);
}

}  // namespace

absl::StatusOr<Instance> InstanceFromJson(const json& object) {
  if (!object.is_object()) return Invalid("instance is not an object");
  JsonFields fields(object, "instance");
  Instance instance;
  const json& net = fields.Object("net");
  instance.embed_mb = fields.DoubleOr("embed_mb", 0, kLow, kHighNumber);
  instance.microbatches = static_cast<int32_t>(fields.IntOr("microbatches", 1, 1, kMaxMicrobatches));
  instance.sequences = static_cast<int32_t>(fields.IntOr("sequences", 0, 0, kMaxMicrobatches));
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_ASSIGN_OR_RETURN(instance.blocks, ReadObjects(fields, "blocks", kMaxPlanBlocks, "instance.", ReadBlock));
  LIME_ASSIGN_OR_RETURN(instance.devices, ReadObjects(fields, "devices", kMaxPlanDevices, "instance.", ReadDevice));
  LIME_ASSIGN_OR_RETURN(instance.net, ReadNet(net));
  LIME_RETURN_IF_ERROR(instance.Validate());
  return instance;
}

void List(JsonList& f, Stage& stage) {
  f.Number("device", stage.device, 0, kMaxPlanDevices);
  f.Number("lo", stage.lo, 0, kMaxPlanBlocks);
  f.Number("hi", stage.hi, 0, kMaxPlanBlocks);
}

absl::StatusOr<StagePlan> StagePlanFromJson(const json& object, const Instance& instance) {
  if (!object.is_object()) return Invalid("plan is not an object");
  JsonFields fields(object, "plan");
  StagePlan plan;
  std::vector<int64_t> streamed;
  plan.embedding_by_rows = fields.BoolOr("embedding_by_rows", false);
  if (fields.Has("streamed")) streamed = fields.Ints("streamed", 0, kMaxPlanBlocks, kMaxPlanBlocks);
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_ASSIGN_OR_RETURN(plan.stages, ReadObjects(fields, "stages", kMaxPlanBlocks, "plan.", ReadStage));
  plan.streamed.assign(streamed.begin(), streamed.end());
  std::sort(plan.streamed.begin(), plan.streamed.end());
  LIME_RETURN_IF_ERROR(plan.Validate(instance));
  return plan;
}

absl::StatusOr<PlanBatch> PlanBatchFromJson(const json& object) {
  JsonFields fields(object, "plan");
  PlanBatch out;
  if (!fields.Has("batch")) return out;
  out.batch = static_cast<int32_t>(fields.Int("batch", 1, kMaxMicrobatches));
  out.microbatches = static_cast<int32_t>(fields.Int("microbatches", 1, kMaxMicrobatches));
  LIME_RETURN_IF_ERROR(fields.status());
  return out;
}

ordered_json ToJson(const StagePlan& plan, const PlanBatch& batch) {
  ordered_json stages = ordered_json::array();
  for (const Stage& stage : plan.stages) stages.push_back(JsonList::WriteObject(stage));
  ordered_json out = {{"stages", std::move(stages)}, {"streamed", plan.streamed}};
  if (plan.embedding_by_rows) out["embedding_by_rows"] = true;
  if (batch.batch > 0) {
    out["microbatches"] = batch.microbatches;
    out["batch"] = batch.batch;
  }
  return out;
}

}  // namespace lime
