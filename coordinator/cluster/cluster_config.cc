#include "coordinator/cluster/cluster_config.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/input/host_port.h"
#include "coordinator/cluster/remote_command.h"
#include "coordinator/cluster/units.h"
#include "planner/base/nearest.h"
#include "planner/base/strings.h"
#include "planner/plan/device/limits.h"

namespace lime {
namespace {

// The address in canonical form. If it is invalid, the text itself, and `fields` has the error.
std::string ReadAddress(TomlFields& fields, const char* key) {
  std::string text = fields.String(key);
  if (text.empty()) return text;
  const absl::StatusOr<HostPort> address = ParseAddress(text);
  if (address.ok() && address->port > 0) return AddressText(*address);
  fields.FailAt(key, absl::StrCat("= \"", ShownToml(text), "\" is not host:port; ", Text(kAddressRule)));
  return text;
}

std::string ShownLatency(double milliseconds) {
  return absl::StrCat(milliseconds, "ms");
}

// ssh starts in a folder that is not known here, and does not expand `~`. A program name without a
// folder is searched on the PATH.
void CheckPathsThere(const ClusterConfig::Device& device, TomlFields& fields) {
  for (const auto& [key, path] : {std::pair("weights", &device.weights), std::pair("store", &device.store),
                                  std::pair("kv-dir", &device.kv_dir), std::pair("tls", &device.tls), std::pair("limed", &device.limed)}) {
    const bool on_path = std::string_view(key) == "limed" && path->find('/') == std::string::npos;
    if (path->empty() || path->front() == '/' || on_path) continue;
    return fields.FailAt(
        key, absl::StrCat("= \"", ShownToml(*path), "\" is relative, but the device is on another machine; write the whole path"));
  }
}

absl::StatusOr<ClusterConfig::Device> ReadDevice(const TomlNode& table, std::string_view file) {
  TomlFields fields(table, file, "[[device]]");
  ClusterConfig::Device device;
  device.line = static_cast<int>(fields.line());
  device.name = fields.String("name");
  device.address = ReadAddress(fields, "address");
  device.memory = fields.Budget("memory");
  device.weights = fields.String("weights");
  device.store = fields.String("store");
  device.threads = static_cast<int32_t>(fields.Int("threads", 0, 1024));
  const auto one_of = [&](const char* key, const auto& names, std::string& value, const char* which = "") {
    const std::string text = fields.String(key);
    if (fields.Has(key) && std::ranges::find(names, text) == names.end())
      fields.FailAt(key, absl::StrCat("= \"", ShownToml(text), "\" is none of ", absl::StrJoin(names, ", "), which));
    if (fields.Has(key)) value = text;
  };
  one_of("backend", kBackendNames, device.backend, " (torch where its module liblime_torch.so is installed)");
  one_of("loader", kLoaderNames, device.loader);
  one_of("memory-mode", kMemoryModeNames, device.memory_mode);
  if (fields.Has("memory-mode") && fields.Has("memory"))
    fields.FailAt("memory-mode", "is for memory that limed chooses; leave out memory or memory-mode");
  if (fields.Has("memory-mode") && !fields.Has("weights"))
    fields.FailAt("memory-mode", "keeps memory free for the KV of a model; add the weights on that device");
  device.follow_memory = fields.Bool("follow-memory");
  device.kv_dir = fields.String("kv-dir");
  device.profile = fields.String("profile");
  device.ssh = fields.String("ssh");
  device.limed = fields.String("limed");
  device.tls = fields.String("tls");
  device.listen = ReadAddress(fields, "listen");
  device.written = fields.Written();
  LIME_RETURN_IF_ERROR(fields.Finish());
  if (!fields.Has("name"))
    fields.Missing("name", "give every device its own name");
  else if (const absl::Status name = CheckDeviceName(device.name); !name.ok())
    fields.FailAt("name", absl::StrCat("= ", name.message()));
  else if (fields.Has("ssh") && !ParseSshWay(device.ssh).ok())
    fields.FailAt("ssh", absl::StrCat("= \"", ShownToml(device.ssh), "\" is not ", kSshWayRule));
  if (fields.Has("ssh")) CheckPathsThere(device, fields);
  LIME_RETURN_IF_ERROR(fields.Finish());
  return device;
}

absl::StatusOr<ClusterConfig::Link> ReadLink(const TomlNode& table, std::string_view file) {
  TomlFields fields(table, file, "[[link]]");
  ClusterConfig::Link link;
  link.from = fields.String("from");
  link.to = fields.String("to");
  link.bytes_per_second = fields.Parsed<double>("bandwidth", ParseBandwidth, 1, kMaxBytesPerSecond, FormatBandwidth);
  link.latency_ms = fields.Parsed<double>("latency", ParseMilliseconds, 0, kMaxLatencyMs, ShownLatency);
  LIME_RETURN_IF_ERROR(fields.Finish());
  if (!fields.Has("bandwidth")) fields.Missing("bandwidth", "write one such as \"100Mbit/s\"");
  if (fields.Has("from") != fields.Has("to"))
    fields.Missing(fields.Has("from") ? "to" : "from", "name both ends, or none for all other pairs");
  LIME_RETURN_IF_ERROR(fields.Finish());
  return link;
}

// The tables of [[key]].
absl::StatusOr<std::vector<const TomlNode*>> Tables(const TomlNode& root, const char* key, size_t max, std::string_view file) {
  std::vector<const TomlNode*> tables;
  const TomlNode* const node = root.Find(key);
  if (node == nullptr) return tables;
  if (node->kind != TomlNode::Kind::kArray)
    return WrongLine(file, node->line, "\"", key, "\" is a single table or value; write [[", key, "]]");
  if (node->items.size() > max) return WrongLine(file, node->line, "has ", node->items.size(), " [[", key, "]], more than ", max);
  for (const TomlNode& element : node->items) {
    if (element.kind != TomlNode::Kind::kTable)
      return WrongLine(file, element.line, "\"", key, "\" has an entry that is not a table; write [[", key, "]]");
    tables.push_back(&element);
  }
  return tables;
}

absl::Status ReadDevices(const TomlNode& root, std::string_view file, ClusterConfig& config) {
  LIME_ASSIGN_OR_RETURN(const std::vector<const TomlNode*> tables, Tables(root, "device", kMaxPlanDevices, file));
  if (tables.empty()) return Invalid(Text(file), ": has no [[device]]; write one for each device");
  std::set<std::string> names;
  for (const TomlNode* const table : tables) {
    LIME_ASSIGN_OR_RETURN(ClusterConfig::Device device, ReadDevice(*table, file));
    if (!names.insert(device.name).second)
      return WrongLine(file, device.line, "[[device]]: there is a device \"", device.name, "\" already; give each device its own name");
    config.devices.push_back(std::move(device));
  }
  return absl::OkStatus();
}

absl::Status ReadLinks(const TomlNode& root, std::string_view file, ClusterConfig& config) {
  LIME_ASSIGN_OR_RETURN(const std::vector<const TomlNode*> tables, Tables(root, "link", kMaxLinks, file));
  std::set<std::string> names;
  for (const ClusterConfig::Device& device : config.devices) names.insert(device.name);
  std::set<std::pair<std::string, std::string>> pairs;
  for (const TomlNode* const table : tables) {
    LIME_ASSIGN_OR_RETURN(ClusterConfig::Link link, ReadLink(*table, file));
    for (const std::string& end : {link.from, link.to}) {
      if (!end.empty() && !names.contains(end))
        return WrongLine(file, table->line, "[[link]]: there is no device \"", ShownToml(end), "\"");
    }
    if (!link.from.empty() && link.from == link.to)
      return WrongLine(file, table->line, "[[link]]: leads from \"", link.from, "\" to itself");
    if (!pairs.insert(std::minmax(link.from, link.to)).second)
      return WrongLine(file, table->line,
                       "[[link]]: ", link.from.empty() ? "there is a link for all pairs" : "these two devices have a link", " already");
    config.links.push_back(std::move(link));
  }
  return absl::OkStatus();
}

absl::Status ReadCluster(const TomlNode& root, std::string_view file, ClusterConfig& config) {
  const TomlNode* const node = root.Find("cluster");
  if (node == nullptr) return absl::OkStatus();
  if (node->kind != TomlNode::Kind::kTable) return WrongLine(file, node->line, "\"cluster\" is not a table; write [cluster] once");
  TomlFields fields(*node, file, "[cluster]");
  config.name = fields.String("name");
  config.model = fields.String("model");
  config.tls = fields.String("tls");
  if (fields.Has("name") && !IsDeviceName(config.name))
    fields.FailAt("name", absl::StrCat("= \"", ShownToml(config.name), "\" is not ", Text(kDeviceNameRule)));
  return fields.Finish();
}

// "localhost" counts as 127.0.0.1: only one device can listen there.
absl::Status CheckDistinctAddresses(const ClusterConfig& config, std::string_view name) {
  std::map<std::string, const ClusterConfig::Device*> at;
  for (const ClusterConfig::Device& device : config.devices) {
    if (device.address.empty()) continue;
    const absl::StatusOr<HostPort> address = ParseAddress(device.address);
    if (!address.ok()) return address.status();
    const auto [first, is_new] = at.emplace(absl::StrCat(PlainHost(address->host), " ", address->port), &device);
    if (is_new) continue;
    return WrongLine(name, device.line, "[[device]]: device \"", device.name, "\" has the address ", device.address, " of device \"",
                     first->second->name, "\"; give each device its own port or host");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ClusterConfig> ParseClusterConfig(std::string_view text, std::string_view name, bool distinct) {
  LIME_ASSIGN_OR_RETURN(const TomlNode root, ParseToml(text, name, kMaxClusterBytes));
  for (const TomlNode& node : root.fields) {
    const std::vector<std::string> known = {"cluster", "device", "link"};
    if (std::ranges::find(known, node.key) == known.end())
      return WrongLine(name, node.line, "\"", ShownToml(node.key), "\" is unknown", ThereAre(DidYouMean(node.key, known)),
                       "[cluster], [[device]] and [[link]]");
  }
  ClusterConfig config;
  LIME_RETURN_IF_ERROR(ReadCluster(root, name, config));
  LIME_RETURN_IF_ERROR(ReadDevices(root, name, config));
  LIME_RETURN_IF_ERROR(ReadLinks(root, name, config));
  if (distinct) LIME_RETURN_IF_ERROR(CheckDistinctAddresses(config, name));
  return config;
}

absl::Status Exclude(const std::vector<std::string>& names, ClusterConfig& config) {
  std::vector<std::string> all;
  for (const ClusterConfig::Device& device : config.devices) all.push_back(device.name);
  for (const std::string& name : names) {
    if (std::ranges::find(all, name) == all.end())
      return Invalid("--without ", ShownToml(name), ": there is no such device; the devices are ", absl::StrJoin(all, ", "));
    std::erase_if(config.devices, [&](const ClusterConfig::Device& device) { return device.name == name; });
    std::erase_if(config.links, [&](const ClusterConfig::Link& link) { return link.from == name || link.to == name; });
  }
  if (config.devices.empty()) return absl::InvalidArgumentError("--without leaves out every device; keep at least one");
  return absl::OkStatus();
}

}  // namespace lime
