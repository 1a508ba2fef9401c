#include "coordinator/cluster/device_profiles.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/input/device_name.h"
#include "coordinator/cluster/units.h"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"
#include "planner/plan/device/limits.h"

namespace lime {
namespace {

using nlohmann::json;

constexpr Bytes kDescribedRead = 1 * kMiB;  // size and depth given to a disk with a single rate
constexpr int64_t kDescribedDepth = 8;

absl::Status Wrong(const std::string& where, const std::string& what) {
  return Invalid(where, ": ", what);
}

absl::Status CheckKnown(const json& object, const std::set<std::string>& known, const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (!known.contains(key) && !key.starts_with("_"))
      return Wrong(where, absl::StrCat("field \"", absl::CHexEscape(key.substr(0, 80)), "\" is unknown; the known fields are ",
                                       absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

// Two fields for the same value could disagree.
absl::Status CheckSaidOnce(const JsonFields& fields, const char* one, const char* other, const std::string& where) {
  if (!fields.Has(one) || !fields.Has(other)) return absl::OkStatus();
  return Wrong(where, absl::StrCat("has both \"", one, "\" and \"", other, "\"; leave one out"));
}

absl::StatusOr<Bytes> ReadMemory(const json& object, const std::string& where) {
  JsonFields fields(object, where);
  LIME_RETURN_IF_ERROR(CheckSaidOnce(fields, "memory", "memory_bytes", where));
  if (fields.Has("memory_bytes") || !fields.Has("memory")) {
    const Bytes bytes = fields.Int("memory_bytes", 1, kMaxDeviceMemory);
    LIME_RETURN_IF_ERROR(fields.status());
    return bytes;
  }
  const std::string text = fields.String("memory");
  LIME_RETURN_IF_ERROR(fields.status());
  const absl::StatusOr<Bytes> bytes = ParseBytes(text);
  if (!bytes.ok()) return Wrong(where, absl::StrCat("field \"memory\": ", bytes.status().message()));
  if (*bytes < 1 || *bytes > kMaxDeviceMemory)
    return Wrong(where, absl::StrCat("field \"memory\" is outside 1 B to ", FormatBytes(kMaxDeviceMemory)));
  return *bytes;
}

std::optional<Bytes> OptionalBytes(JsonFields& fields, const char* key) {
  if (!fields.Has(key)) return std::nullopt;
  return fields.Int(key, 0, kMaxDeviceMemory);
}

// Makes the JSON of a DeviceProfile from the device's own rate fields.
absl::StatusOr<json> ProfileOfRates(const json& object, const std::string& where) {
  if (!object.contains("read_bytes_per_second")) {
    return Wrong(where,
                 "has neither \"profile\" (the JSON that `lime profile --out F` writes on the device) nor \"read_bytes_per_second\"");
  }
  // In measured profiles 0 means "not measured".
  if (object.contains("flops") && object.at("flops").is_number() && object.at("flops").get<double>() < 1)
    return Wrong(where, "field \"flops\" is below 1; give operations per second, or leave it out");
  json profile = {{"cpu", "described"}, {"threads", 1}, {"disk", json::array()}, {"models", json::array()}, {"links", json::array()}};
  for (const char* key : {"read_bytes_per_second", "flops", "block_overhead_ms"}) {
    if (object.contains(key)) profile[key] = object.at(key);
  }
  if (!object.contains("disk")) return profile;
  const json& disk = object.at("disk");
  if (disk.is_array()) return profile["disk"] = disk, profile;
  if (!disk.is_object()) return Wrong(where, "field \"disk\" is neither an object nor an array");
  LIME_RETURN_IF_ERROR(CheckKnown(disk, {"bytes_per_second", "latency_ms"}, where + ".disk"));
  profile["disk"].push_back(disk);
  profile["disk"][0].update({{"read_bytes", kDescribedRead}, {"depth", kDescribedDepth}});
  return profile;
}

absl::StatusOr<DeviceProfile> ReadProfileOf(const json& object, const std::string& where) {
  json profile;
  if (object.contains("profile")) {
    for (const char* key : {"read_bytes_per_second", "flops", "block_overhead_ms", "disk"}) {
      LIME_RETURN_IF_ERROR(CheckSaidOnce(JsonFields(object, where), "profile", key, where));
    }
    profile = object.at("profile");
    if (!profile.is_object()) return Wrong(where, "field \"profile\" is not an object");
  } else {
    LIME_ASSIGN_OR_RETURN(profile, ProfileOfRates(object, where));
  }
  if (object.contains("links")) profile["links"] = object.at("links");
  return ParseDeviceProfile(JsonText(profile), where);
}

absl::StatusOr<DescribedDevice> ReadDevice(const json& object, const std::string& where) {
  if (!object.is_object()) return Wrong(where, "is not an object");
  LIME_RETURN_IF_ERROR(CheckKnown(object,
                                  {"name", "numerics_id", "memory", "memory_bytes", "runtime_bytes", "activation_bytes", "margin_bytes",
                                   "profile", "read_bytes_per_second", "flops", "block_overhead_ms", "disk", "links"},
                                  where));
  JsonFields fields(object, where);
  DescribedDevice device;
  device.name = fields.String("name");
  device.numerics_id = fields.StringOr("numerics_id", "");
  device.runtime = OptionalBytes(fields, "runtime_bytes");
  device.activations = OptionalBytes(fields, "activation_bytes");
  device.margin = OptionalBytes(fields, "margin_bytes");
  LIME_RETURN_IF_ERROR(fields.status());
  if (!IsDeviceName(device.name)) return Wrong(where, absl::StrCat("field \"name\" is not ", Text(kDeviceNameRule)));
  if (!device.numerics_id.empty() && !IsDeviceName(device.numerics_id))
    return Wrong(where, absl::StrCat("field \"numerics_id\" is not ", Text(kDeviceNameRule)));
  LIME_ASSIGN_OR_RETURN(device.memory, ReadMemory(object, where));
  LIME_ASSIGN_OR_RETURN(device.profile, ReadProfileOf(object, where));
  return device;
}

absl::StatusOr<LinkPoint> ReadLink(const json& object, const std::string& where) {
  LIME_RETURN_IF_ERROR(CheckKnown(object, {"bandwidth", "bytes_per_second", "latency_ms"}, where));
  JsonFields fields(object, where);
  LIME_RETURN_IF_ERROR(CheckSaidOnce(fields, "bandwidth", "bytes_per_second", where));
  LinkPoint link;
  link.latency_ms = fields.DoubleOr("latency_ms", 0, 0, kMaxLatencyMs);
  if (fields.Has("bytes_per_second") || !fields.Has("bandwidth")) {
    link.bytes_per_second = fields.Double("bytes_per_second", 1, kMaxBytesPerSecond);
    LIME_RETURN_IF_ERROR(fields.status());
    return link;
  }
  const std::string text = fields.String("bandwidth");
  LIME_RETURN_IF_ERROR(fields.status());
  const absl::StatusOr<double> rate = ParseBandwidth(text);
  if (!rate.ok()) return Wrong(where, absl::StrCat("field \"bandwidth\": ", rate.status().message()));
  if (*rate < 1 || *rate > kMaxBytesPerSecond) return Wrong(where, "field \"bandwidth\" is out of range");
  link.bytes_per_second = *rate;
  return link;
}

absl::Status CheckPeers(const DescribedCluster& cluster, const std::set<std::string>& names, const std::string& where) {
  for (const DescribedDevice& device : cluster.devices) {
    for (const LinkPoint& link : device.profile.links) {
      // A measured profile may know of peers that are not part of this cluster.
      if (link.peer == device.name) return Wrong(where, absl::StrCat("device \"", device.name, "\" has a link to itself"));
      if (names.contains(link.peer) && !(link.bytes_per_second >= 1))
        return Wrong(where, absl::StrCat("device \"", device.name, "\" has a link to \"", link.peer, "\" without a rate"));
    }
  }
  return absl::OkStatus();
}

json LinkJson(const LinkPoint& link) {
  return {{"bytes_per_second", link.bytes_per_second}, {"latency_ms", link.latency_ms}};
}

json DeviceJson(const DescribedDevice& device) {
  json object = {{"name", device.name}, {"memory_bytes", device.memory}, {"profile", json::parse(ToJsonText(device.profile))}};
  if (!device.numerics_id.empty()) object["numerics_id"] = device.numerics_id;
  if (device.runtime) object["runtime_bytes"] = *device.runtime;
  if (device.activations) object["activation_bytes"] = *device.activations;
  if (device.margin) object["margin_bytes"] = *device.margin;
  return object;
}

}  // namespace

std::string ToJsonText(const DescribedCluster& cluster) {
  json root = {{"devices", json::array()}};
  if (cluster.link) root["link"] = LinkJson(*cluster.link);
  for (const DescribedDevice& device : cluster.devices) root["devices"].push_back(DeviceJson(device));
  return JsonText(root, 1);
}

std::string ProfilesPathOf(const std::string& cluster_path) {
  return std::filesystem::path(cluster_path).replace_extension(".profiles.json").string();
}

const DescribedDevice* DescribedCluster::Find(std::string_view name) const {
  const auto found = std::ranges::find(devices, name, &DescribedDevice::name);
  return found == devices.end() ? nullptr : &*found;
}

absl::StatusOr<DescribedCluster> ParseDeviceProfiles(std::string_view text, std::string_view name) {
  const std::string where(name);
  LIME_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, where));
  LIME_RETURN_IF_ERROR(CheckKnown(root, {"devices", "link"}, where));
  JsonFields fields(root, where);
  const json& devices = fields.Array("devices", kMaxPlanDevices);
  DescribedCluster cluster;
  if (fields.Has("link")) {
    const json& link = fields.Object("link");
    LIME_RETURN_IF_ERROR(fields.status());
    LIME_ASSIGN_OR_RETURN(cluster.link, ReadLink(link, where + ".link"));
  }
  LIME_RETURN_IF_ERROR(fields.status());
  if (devices.empty()) return Wrong(where, "field \"devices\" is empty; describe at least one device");
  std::set<std::string> names;
  for (const json& object : devices) {
    LIME_ASSIGN_OR_RETURN(DescribedDevice device, ReadDevice(object, absl::StrCat(where, ": devices[", cluster.devices.size(), "]")));
    if (!names.insert(device.name).second) return Wrong(where, absl::StrCat("there are two devices \"", device.name, "\""));
    cluster.devices.push_back(std::move(device));
  }
  LIME_RETURN_IF_ERROR(CheckPeers(cluster, names, where));
  return cluster;
}

}  // namespace lime
