#include "coordinator/cluster/cluster_config.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/cluster/remote_command.h"
#include "coordinator/cluster/toml_file.h"
#include "coordinator/cluster/units.h"
#include "planner/base/nearest.h"
#include "planner/base/strings.h"
#include "planner/plan/backend_names.h"
#include "planner/plan/limits.h"

namespace lime {
namespace {

bool IsAddress(std::string_view address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string_view::npos || colon == 0 || address.find(' ') != std::string_view::npos) return false;
  const std::string_view host = address.substr(0, colon);
  if (host.find(':') != std::string_view::npos && !(host.front() == '[' && host.back() == ']')) return false;
  return absl::SimpleAtoi(Text(address.substr(colon + 1)), &port) && port >= 1 && port <= 65535;
}

// The same text for the same place, as far as that can be told without asking a name server.
std::string PlainAddress(const std::string& address) {
  constexpr absl::string_view kLocal = "localhost:";
  const std::string plain = absl::AsciiStrToLower(address);
  return absl::StartsWith(plain, kLocal) ? absl::StrCat("127.0.0.1:", plain.substr(kLocal.size())) : plain;
}

absl::StatusOr<ClusterConfig::Device> ReadDevice(const TomlNode& table, std::string_view file) {
  TomlFields fields(table, file, "[[device]]");
  ClusterConfig::Device device;
  device.line = static_cast<int>(fields.line());
  device.name = fields.String("name");
  device.address = fields.String("address");
  device.memory = fields.Budget("memory");
  device.weights = fields.String("weights");
  device.store = fields.String("store");
  device.threads = static_cast<int32_t>(fields.Int("threads", 0, 1024));
  const std::string backend = fields.String("backend");
  device.profile = fields.String("profile");
  device.ssh = fields.String("ssh");
  device.limed = fields.String("limed");
  device.tls = fields.String("tls");
  device.listen = fields.String("listen");
  LIME_RETURN_IF_ERROR(fields.Finish());
  if (!fields.Has("name"))
    fields.Missing("name", "every device has one of its own");
  else if (!IsDeviceName(device.name))
    fields.FailAt("name", absl::StrCat("= \"", ShownToml(device.name), "\" is not ", Text(kDeviceNameRule)));
  else if (fields.Has("address") && !IsAddress(device.address))
    fields.FailAt("address", absl::StrCat("= \"", ShownToml(device.address), "\" is not host:port"));
  else if (fields.Has("listen") && !IsAddress(device.listen))
    fields.FailAt("listen", absl::StrCat("= \"", ShownToml(device.listen), "\" is not host:port"));
  else if (fields.Has("ssh") && !ParseSshWay(device.ssh).ok())
    fields.FailAt("ssh", absl::StrCat("= \"", ShownToml(device.ssh), "\" is not ", kSshWayRule));
  else if (fields.Has("backend") && std::ranges::find(kBackendNames, backend) == kBackendNames.end())
    fields.FailAt("backend", absl::StrCat("= \"", ShownToml(backend), "\" is none of ", absl::StrJoin(kBackendNames, " and ")));
  if (fields.Has("backend")) device.backend = backend;
  LIME_RETURN_IF_ERROR(fields.Finish());
  return device;
}

absl::StatusOr<ClusterConfig::Link> ReadLink(const TomlNode& table, std::string_view file) {
  TomlFields fields(table, file, "[[link]]");
  ClusterConfig::Link link;
  link.from = fields.String("from");
  link.to = fields.String("to");
  link.bytes_per_second = fields.Parsed<double>("bandwidth", ParseBandwidth, 1, kMaxBytesPerSecond);
  link.latency_ms = fields.Parsed<double>("latency", ParseMilliseconds, 0, kMaxLatencyMs);
  LIME_RETURN_IF_ERROR(fields.Finish());
  if (!fields.Has("bandwidth")) fields.Missing("bandwidth", "write one such as \"100Mbit/s\"");
  if (fields.Has("from") != fields.Has("to"))
    fields.Missing(fields.Has("from") ? "to" : "from", "name both ends, or none for all other pairs");
  LIME_RETURN_IF_ERROR(fields.Finish());
  return link;
}

// The tables of [[key]], or null with a status.
absl::StatusOr<std::vector<const TomlNode*>> Tables(const TomlNode& root, const char* key, size_t max, std::string_view file) {
  std::vector<const TomlNode*> tables;
  const TomlNode* const node = root.Find(key);
  if (node == nullptr) return tables;
  if (node->kind != TomlNode::Kind::kArray) return WrongLine(file, node->line, "\"", key, "\" is one table or value; write [[", key, "]]");
  if (node->items.size() > max) return WrongLine(file, node->line, "has ", node->items.size(), " [[", key, "]], more than ", max);
  for (const TomlNode& element : node->items) {
    if (element.kind != TomlNode::Kind::kTable)
      return WrongLine(file, element.line, "\"", key, "\" holds what is no table; write [[", key, "]]");
    tables.push_back(&element);
  }
  return tables;
}

absl::Status ReadDevices(const TomlNode& root, std::string_view file, ClusterConfig& config) {
  LIME_ASSIGN_OR_RETURN(const std::vector<const TomlNode*> tables, Tables(root, "device", kMaxPlanDevices, file));
  if (tables.empty()) return absl::InvalidArgumentError(absl::StrCat(Text(file), ": has no [[device]]; write one for each device"));
  std::set<std::string> names;
  for (const TomlNode* const table : tables) {
    LIME_ASSIGN_OR_RETURN(ClusterConfig::Device device, ReadDevice(*table, file));
    if (!names.insert(device.name).second)
      return WrongLine(file, device.line, "[[device]]: there is a device \"", device.name, "\" already; give each a name of its own");
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
      return WrongLine(file, table->line, "[[link]]: ", link.from.empty() ? "there is one for all pairs" : "these two have one",
                       " already");
    config.links.push_back(std::move(link));
  }
  return absl::OkStatus();
}

absl::Status ReadCluster(const TomlNode& root, std::string_view file, ClusterConfig& config) {
  const TomlNode* const node = root.Find("cluster");
  if (node == nullptr) return absl::OkStatus();
  if (node->kind != TomlNode::Kind::kTable) return WrongLine(file, node->line, "\"cluster\" is no table; write [cluster] once");
  TomlFields fields(*node, file, "[cluster]");
  config.name = fields.String("name");
  config.model = fields.String("model");
  config.tls = fields.String("tls");
  return fields.Finish();
}

}  // namespace

bool IsDeviceName(std::string_view name) {
  constexpr size_t kMaxNameBytes = 64;
  return !name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

absl::StatusOr<ClusterConfig> ParseClusterConfig(std::string_view text, std::string_view name) {
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
  return config;
}

absl::Status CheckDistinctAddresses(const ClusterConfig& config, std::string_view name) {
  std::map<std::string, const ClusterConfig::Device*> at;
  for (const ClusterConfig::Device& device : config.devices) {
    if (device.address.empty()) continue;
    const auto [first, is_new] = at.emplace(PlainAddress(device.address), &device);
    if (is_new) continue;
    return WrongLine(name, device.line, "[[device]]: device \"", device.name, "\" has the address ", device.address, " of device \"",
                     first->second->name, "\"; give each a port or a host of its own");
  }
  return absl::OkStatus();
}

absl::Status LeaveOut(const std::vector<std::string>& names, ClusterConfig& config) {
  std::vector<std::string> all;
  for (const ClusterConfig::Device& device : config.devices) all.push_back(device.name);
  for (const std::string& name : names) {
    if (std::ranges::find(all, name) == all.end())
      return absl::InvalidArgumentError(
          absl::StrCat("--without ", ShownToml(name), ": there is no such device; there are ", absl::StrJoin(all, ", ")));
    std::erase_if(config.devices, [&](const ClusterConfig::Device& device) { return device.name == name; });
    std::erase_if(config.links, [&](const ClusterConfig::Link& link) { return link.from == name || link.to == name; });
  }
  if (config.devices.empty()) return absl::InvalidArgumentError("--without leaves no device; keep one at least");
  return absl::OkStatus();
}

}  // namespace lime
