// Device profiles as JSON.

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/json_list.h"
#include "planner/base/json_text.h"
#include "planner/plan/device/device_profile.h"
#include "planner/plan/device/limits.h"

namespace lime {
namespace {

using nlohmann::json;
using enum JsonList::Presence;

// Bounds of what is believed; far beyond any device, and such that sums and products of them stay
// finite.
constexpr size_t kMaxStrings = 512;
constexpr size_t kMaxPoints = 4096, kMaxModels = 1024;
constexpr double kMaxRate = 1e18, kMaxMs = 1e12;
constexpr int64_t kMaxRows = int64_t{1} << 24, kMaxContext = int64_t{1} << 32, kMaxReadBytes = int64_t{1} << 40, kMaxDiskDepth = 65536;

// What is looked up by `key` must be there once.
template <typename T, typename Key>
absl::Status CheckDistinct(const std::vector<T>& sorted, Key key, const std::string& where, const std::string& what) {
  const auto twice = std::ranges::adjacent_find(sorted, {}, key);
  return twice == sorted.end() ? absl::OkStatus() : Invalid(where, ": ", what, " is listed twice");
}

absl::Status CheckModels(const DeviceProfile& profile, size_t models_read, const std::string& where) {
  if (profile.models.size() < models_read) return Invalid(where, ": a model is listed twice");
  for (const ModelCompute& model : profile.models) {
    const auto place = [](const ComputePoint& p) { return std::tuple(p.kind, p.rows, p.context); };
    LIME_RETURN_IF_ERROR(CheckDistinct(model.points, place, where, absl::StrCat("a point of model \"", model.key, "\"")));
  }
  return absl::OkStatus();
}

}  // namespace

static void List(JsonList& f, DiskPoint& point) {
  f.Number("read_bytes", point.read_bytes, 1, kMaxReadBytes);
  f.Number("depth", point.depth, 1, kMaxDiskDepth);
  f.Number("bytes_per_second", point.bytes_per_second, 0, kMaxRate);
  f.Number("latency_ms", point.latency_ms, 0, kMaxMs, kOptional);
}

static void List(JsonList& f, BurstCost& cost) {
  double bytes_per_second = 1000 * cost.bytes_per_ms;
  f.Number("burst_ms", cost.burst_ms, 0, kMaxMs);
  f.Number("read_ms", cost.read_ms, 0, kMaxMs);
  f.Number("bytes_per_second", bytes_per_second, 1, kMaxRate);
  if (f.reads()) cost.bytes_per_ms = bytes_per_second / 1000;
}

static void List(JsonList& f, LinkPoint& link) {
  f.Text("peer", link.peer, kRequired, kMaxStrings);
  f.Number("bytes_per_second", link.bytes_per_second, 0, kMaxBytesPerSecond);
  f.Number("latency_ms", link.latency_ms, 0, kMaxLatencyMs);
}

static void List(JsonList& f, ComputePoint& point) {
  f.Named("kind", point.kind, kKindNames);
  f.Number("rows", point.rows, 1, kMaxRows);
  f.Number("context", point.context, 0, kMaxContext, kOptional);
  f.Number("ms", point.ms, 0, kMaxMs);
}

static void List(JsonList& f, ModelCompute& model) {
  f.Text("key", model.key, kRequired, kMaxStrings);
  f.Text("name", model.name, kOptional, kMaxStrings);
  f.Number("step_overhead_ms", model.step_overhead_ms, 0, kMaxMs, kOptional);
  f.Each("points", model.points, kMaxPoints, kOptional);
}

static void List(JsonList& f, DeviceProfile& profile) {
  f.Text("cpu", profile.cpu, kRequired, kMaxStrings);
  f.Text("instruction_set", profile.instruction_set, kOptional, kMaxStrings);
  f.Number("threads", profile.threads, 1, 65536);
  f.Number("read_bytes_per_second", profile.read_bytes_per_second, 1, kMaxRate);
  f.Number("flops", profile.flops, 0, kMaxRate, kOptional);
  f.Number("block_overhead_ms", profile.block_overhead_ms, 0, kMaxMs, kOptional);
  f.Each("disk", profile.disk, kMaxPoints, kOptional);
  f.Maybe("bursts", profile.bursts);
  f.Each("models", profile.models, kMaxModels, kOptional);
  f.Each("links", profile.links, kMaxLinks, kOptional);
}

absl::StatusOr<DeviceProfile> ParseDeviceProfile(std::string_view text, std::string_view name) {
  const std::string where(name);
  LIME_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, where));
  JsonFields fields(root, where);
  auto profile = JsonList::ReadObject<DeviceProfile>(fields);
  LIME_RETURN_IF_ERROR(fields.status());
  std::vector<ModelCompute> models = std::exchange(profile.models, {});
  const size_t models_read = models.size();
  profile.SetDisk(std::move(profile.disk), profile.bursts);
  for (ModelCompute& model : models) profile.SetModel(std::move(model));
  std::ranges::sort(profile.links, {}, &LinkPoint::peer);
  const auto place = [](const DiskPoint& p) { return std::pair(p.read_bytes, p.depth); };
  LIME_RETURN_IF_ERROR(CheckDistinct(profile.disk, place, where, "a read size and depth of the disk"));
  LIME_RETURN_IF_ERROR(CheckDistinct(profile.links, &LinkPoint::peer, where, "a link's peer"));
  LIME_RETURN_IF_ERROR(CheckModels(profile, models_read, where));
  return profile;
}

std::string ToJsonText(const DeviceProfile& profile) {
  return JsonList::WriteObject(profile).dump(1, ' ', false, json::error_handler_t::replace);
}

}  // namespace lime
