// Device profiles as JSON.

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"
#include "planner/plan/device_profile.h"
#include "planner/plan/limits.h"

namespace lime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Bounds of what is believed; far beyond any device, and such that sums and products of them stay finite.
constexpr size_t kMaxStrings = 512;
constexpr size_t kMaxPoints = 4096, kMaxModels = 1024;
constexpr double kMaxRate = 1e18, kMaxMs = 1e12;
constexpr int64_t kMaxRows = int64_t{1} << 24, kMaxContext = int64_t{1} << 32, kMaxReadBytes = int64_t{1} << 40, kMaxDiskDepth = 65536;

// A string of the profile's owner; bounded, since it is printed.
absl::StatusOr<std::string> Name(JsonFields& fields, const std::string& key, const std::string& where, bool required = true) {
  std::string name = required ? fields.String(key) : fields.StringOr(key, "");
  if (name.size() > kMaxStrings) return Invalid(where, ": field \"", key, "\" is longer than ", kMaxStrings, " bytes");
  return name;
}

absl::StatusOr<DiskPoint> ReadDiskPoint(JsonFields& fields, const std::string&) {
  return DiskPoint{.read_bytes = fields.Int("read_bytes", 1, kMaxReadBytes),
                   .depth = fields.Int("depth", 1, kMaxDiskDepth),
                   .bytes_per_second = fields.Double("bytes_per_second", 0, kMaxRate),
                   .latency_ms = fields.DoubleOr("latency_ms", 0, 0, kMaxMs)};
}

absl::StatusOr<LinkPoint> ReadLink(JsonFields& fields, const std::string& where) {
  LinkPoint link;
  LIME_ASSIGN_OR_RETURN(link.peer, Name(fields, "peer", where));
  link.bytes_per_second = fields.Double("bytes_per_second", 0, kMaxRate);
  link.latency_ms = fields.Double("latency_ms", 0, kMaxMs);
  return link;
}

absl::StatusOr<ComputePoint> ReadComputePoint(JsonFields& fields, const std::string& where) {
  const std::optional<BlockKind> kind = kKindNames.Find(fields.String("kind"));
  LIME_RETURN_IF_ERROR(fields.status());
  if (!kind) return Invalid(where, ": field \"kind\" is none of embedding, attention, mlp and head");
  return ComputePoint{.kind = *kind,
                      .rows = fields.Int("rows", 1, kMaxRows),
                      .context = fields.IntOr("context", 0, 0, kMaxContext),
                      .ms = fields.Double("ms", 0, kMaxMs)};
}

// No array is an empty one.
template <typename T>
absl::StatusOr<std::vector<T>> ReadAnyObjects(JsonFields& fields, const std::string& key, size_t max_size, const std::string& where,
                                              absl::StatusOr<T> (*read)(JsonFields&, const std::string&)) {
  if (!fields.Has(key)) return std::vector<T>{};
  return ReadObjects<T>(fields, key, max_size, where, read);
}

// What is looked up by `key` must be there once.
template <typename T, typename Key>
absl::Status CheckDistinct(const std::vector<T>& sorted, Key key, const std::string& where, const std::string& what) {
  const auto twice = std::ranges::adjacent_find(sorted, {}, key);
  return twice == sorted.end() ? absl::OkStatus() : Invalid(where, ": ", what, " is there twice");
}

absl::StatusOr<ModelCompute> ReadModel(JsonFields& fields, const std::string& where) {
  ModelCompute model;
  LIME_ASSIGN_OR_RETURN(model.key, Name(fields, "key", where));
  LIME_ASSIGN_OR_RETURN(model.name, Name(fields, "name", where, /*required=*/false));
  model.step_overhead_ms = fields.DoubleOr("step_overhead_ms", 0, 0, kMaxMs);
  LIME_ASSIGN_OR_RETURN(model.points, ReadAnyObjects<ComputePoint>(fields, "points", kMaxPoints, where + ": ", ReadComputePoint));
  return model;
}

absl::Status CheckModels(const DeviceProfile& profile, size_t models_read, const std::string& where) {
  if (profile.models.size() < models_read) return Invalid(where, ": a model is there twice");
  for (const ModelCompute& model : profile.models) {
    const auto place = [](const ComputePoint& p) { return std::tuple(p.kind, p.rows, p.context); };
    LIME_RETURN_IF_ERROR(CheckDistinct(model.points, place, where, absl::StrCat("a point of model \"", model.key, "\"")));
  }
  return absl::OkStatus();
}

ordered_json ModelJson(const ModelCompute& model) {
  ordered_json points = ordered_json::array();
  for (const ComputePoint& p : model.points)
    points.push_back({{"kind", kKindNames.Of(p.kind)}, {"rows", p.rows}, {"context", p.context}, {"ms", p.ms}});
  return {{"key", model.key}, {"name", model.name}, {"step_overhead_ms", model.step_overhead_ms}, {"points", std::move(points)}};
}

}  // namespace

absl::StatusOr<DeviceProfile> ParseDeviceProfile(std::string_view text, std::string_view name) {
  const std::string where(name);
  LIME_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, where));
  JsonFields fields(root, where);
  DeviceProfile profile;
  LIME_ASSIGN_OR_RETURN(profile.cpu, Name(fields, "cpu", where));
  LIME_ASSIGN_OR_RETURN(profile.instruction_set, Name(fields, "instruction_set", where, /*required=*/false));
  profile.threads = fields.Int("threads", 1, 65536);
  profile.read_bytes_per_second = fields.Double("read_bytes_per_second", 1, kMaxRate);
  profile.flops = fields.DoubleOr("flops", 0, 0, kMaxRate);
  profile.block_overhead_ms = fields.DoubleOr("block_overhead_ms", profile.block_overhead_ms, 0, kMaxMs);
  LIME_ASSIGN_OR_RETURN(std::vector<DiskPoint> disk, ReadAnyObjects<DiskPoint>(fields, "disk", kMaxPoints, where + ": ", ReadDiskPoint));
  LIME_ASSIGN_OR_RETURN(std::vector<ModelCompute> models,
                        ReadAnyObjects<ModelCompute>(fields, "models", kMaxModels, where + ": ", ReadModel));
  LIME_ASSIGN_OR_RETURN(profile.links, ReadAnyObjects<LinkPoint>(fields, "links", kMaxLinks, where + ": ", ReadLink));
  LIME_RETURN_IF_ERROR(fields.status());
  const size_t models_read = models.size();
  profile.SetDisk(std::move(disk));
  for (ModelCompute& model : models) profile.SetModel(std::move(model));
  std::ranges::sort(profile.links, {}, &LinkPoint::peer);
  const auto place = [](const DiskPoint& p) { return std::pair(p.read_bytes, p.depth); };
  LIME_RETURN_IF_ERROR(CheckDistinct(profile.disk, place, where, "a read size and depth of the disk"));
  LIME_RETURN_IF_ERROR(CheckDistinct(profile.links, &LinkPoint::peer, where, "a link's peer"));
  LIME_RETURN_IF_ERROR(CheckModels(profile, models_read, where));
  return profile;
}

std::string ToJsonText(const DeviceProfile& profile) {
  ordered_json root = {{"cpu", profile.cpu},
                       {"instruction_set", profile.instruction_set},
                       {"threads", profile.threads},
                       {"read_bytes_per_second", profile.read_bytes_per_second},
                       {"flops", profile.flops},
                       {"block_overhead_ms", profile.block_overhead_ms},
                       {"disk", ordered_json::array()},
                       {"models", ordered_json::array()},
                       {"links", ordered_json::array()}};
  for (const DiskPoint& p : profile.disk) {
    root["disk"].push_back(
        {{"read_bytes", p.read_bytes}, {"depth", p.depth}, {"bytes_per_second", p.bytes_per_second}, {"latency_ms", p.latency_ms}});
  }
  for (const ModelCompute& model : profile.models) root["models"].push_back(ModelJson(model));
  for (const LinkPoint& link : profile.links) {
    root["links"].push_back({{"peer", link.peer}, {"bytes_per_second", link.bytes_per_second}, {"latency_ms", link.latency_ms}});
  }
  return root.dump(1, ' ', false, json::error_handler_t::replace);
}

}  // namespace lime
