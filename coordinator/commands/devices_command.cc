#include <algorithm>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/default_cluster.h"
#include "coordinator/cluster/device_profiles.h"
#include "coordinator/cluster/units.h"
#include "coordinator/commands/commands.h"
#include "coordinator/devices/cluster_file.h"
#include "coordinator/devices/cluster_profile.h"
#include "coordinator/devices/device_checks.h"
#include "coordinator/reports/text_table.h"
#include "nlohmann/json.hpp"
#include "proto/certificate.h"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr absl::Duration kDevicesPatience = absl::Seconds(2);

struct DevicesFlags {
  std::string cluster;
  bool insecure = false;
  bool json = false;
};

// One device: its entry in the file, its answer, its measurements.
struct Seen {
  const ClusterConfig::Device* config = nullptr;
  absl::StatusOr<DeviceHealth> health;
  const DescribedDevice* measured = nullptr;  // null: not measured
  std::vector<LinkRate> links;                // outgoing, now; empty without a plan in use
};

std::vector<Seen> Ask(const ClusterFile& file, const DescribedCluster& stored) {
  const std::vector<std::unique_ptr<DeviceClient>> clients = file.Clients();
  std::vector<Seen> seen(clients.size());
  AtOnce(clients.size(), [&](size_t i) {
    const DeviceClient& client = *clients[i];
    Seen& device = seen[i];
    device.config = &file.config.devices[i];
    device.measured = stored.Find(client.name());
    device.health = client.Health(kDevicesPatience);
    if (!device.health.ok() || device.health->epoch < 0) return;
    if (absl::StatusOr<DeviceStatistics> statistics = client.Statistics(kDevicesPatience); statistics.ok())
      device.links = std::move(statistics->links);
  });
  return seen;
}

Bytes MemoryOf(const Seen& device) {
  if (device.health.ok() && device.health->memory > 0) return device.health->memory;
  if (device.config->memory > 0) return device.config->memory;
  return device.measured != nullptr ? device.measured->memory : 0;
}

std::string Numerics(const Seen& device) {
  return device.measured != nullptr ? device.measured->numerics_id : "";
}

// The backend that the daemon runs with, else the one in the file.
std::string BackendOf(const Seen& device) {
  return device.health.ok() && device.health->settings ? device.health->settings->backend : device.config->backend;
}

double DiskRate(const Seen& device) {
  return device.measured != nullptr ? device.measured->profile.DiskRate(kMiB, 8) : 0;
}

std::string Installed(const DeviceHealth& health) {
  return health.epoch < 0 ? "nothing" : absl::StrCat(health.model, ", epoch ", health.epoch);
}

// "940 Mbit/s, 0.2 ms", for the slowest outgoing link.
std::string Links(const Seen& device) {
  if (device.measured == nullptr || device.measured->profile.links.empty()) return "-";
  const auto& links = device.measured->profile.links;
  const LinkPoint& slowest = *std::ranges::min_element(links, {}, &LinkPoint::bytes_per_second);
  const double latency = std::ranges::max_element(links, {}, &LinkPoint::latency_ms)->latency_ms;
  return absl::StrFormat("%s, %.2f ms", FormatBandwidth(slowest.bytes_per_second), latency);
}

json DeviceJson(const Seen& device) {
  json object = {{"name", device.config->name},
                 {"address", device.config->address},
                 {"answers", device.health.ok()},
                 {"backend", BackendOf(device)},
                 {"numerics_id", Numerics(device)},
                 {"memory_bytes", MemoryOf(device)},
                 {"disk_bytes_per_second", DiskRate(device)},
                 {"links", json::array()},
                 {"links_now", json::array()}};
  for (const LinkRate& link : device.links)
    object["links_now"].push_back({{"peer", link.peer}, {"bytes_per_second", link.bytes_per_second}, {"age_ms", link.age_ms}});
  if (device.health.ok()) {
    object["epoch"] = device.health->epoch;
    object["model"] = device.health->model;
    if (device.health->used_by) object["used_by"] = UsedByJson(*device.health->used_by);
    object["runtime_bytes"] = device.health->runtime;
    object["release"] = device.health->release;
    object["protocol"] = device.health->protocol;
    if (device.health->clock > 0) object["clock_ahead_seconds"] = device.health->clock - std::time(nullptr);
    if (device.health->keys_until > 0) object["keys_until"] = FormatClock(device.health->keys_until);
  } else {
    object["problem"] = std::string(device.health.status().message());
    object["fault"] = NameOf(DiagnosisOf(device.health.status()).fault);
  }
  if (device.measured == nullptr) return object;
  for (const LinkPoint& link : device.measured->profile.links)
    object["links"].push_back({{"peer", link.peer}, {"bytes_per_second", link.bytes_per_second}, {"latency_ms", link.latency_ms}});
  return object;
}

std::string ReleaseOf(const Seen& device) {
  return device.health.ok() && !device.health->release.empty() ? device.health->release : "-";
}

// Notices about clocks and releases that differ, and keys that expire: they will cause faults
// later.
std::vector<std::string> NoticesOf(const std::vector<Seen>& devices, const ClusterKeys& own) {
  std::vector<std::pair<std::string, const DeviceHealth*>> health;
  std::vector<std::string> notices;
  for (const Seen& device : devices) {
    health.emplace_back(device.config->name, device.health.ok() ? &*device.health : nullptr);
    if (!device.health.ok()) continue;
    for (const Finding& finding : {CheckRelease(*device.health), CheckClock(*device.health, std::time(nullptr))}) {
      if (finding.grade != Grade::kOk)
        notices.push_back(absl::StrCat("device \"", device.config->name, "\", ", finding.check, ": ", finding.what, "; ", finding.remedy));
    }
  }
  const std::vector<std::string> expiry = ExpiryNotices(own, health, std::time(nullptr));
  notices.insert(notices.end(), expiry.begin(), expiry.end());
  return notices;
}

void Print(const std::vector<Seen>& devices, const ClusterKeys& own) {
  constexpr auto kLeft = TextTable::Align::kLeft, kRight = TextTable::Align::kRight;
  TextTable table({kLeft, kLeft, kLeft, kLeft, kLeft, kLeft, kRight, kLeft, kRight, kRight});
  table.AddRow({"device", "address", "answers", "release", "backend", "numerics", "may use", "installed", "disk", "slowest link"});
  for (const Seen& device : devices) {
    const Bytes memory = MemoryOf(device);
    const std::string numerics = Numerics(device);
    table.AddRow({device.config->name, device.config->address, device.health.ok() ? "yes" : "no", ReleaseOf(device), BackendOf(device),
                  numerics.empty() ? "-" : numerics, memory > 0 ? FormatBytes(memory) : "-",
                  device.health.ok() ? Installed(*device.health) : "-",
                  DiskRate(device) > 0 ? absl::StrFormat("%.2f GB/s", DiskRate(device) / 1e9) : "-", Links(device)});
  }
  std::cout << table.Text(OutputColumns(), -1);
  for (const Seen& device : devices) {
    if (device.health.ok() && device.health->used_by)
      std::cout << device.config->name << " runs " << device.health->model << " for " << device.health->used_by->Who() << "\n";
  }
  for (const Seen& device : devices) {
    for (const LinkRate& link : device.links) {
      std::cout << absl::StrFormat("%s to %s: %s now (measured %.1f s ago)\n", device.config->name, link.peer,
                                   FormatBandwidth(link.bytes_per_second), link.age_ms / 1000);
    }
  }
  for (const Seen& device : devices) {
    if (!device.health.ok()) std::cout << std::string(device.health.status().message()) << "\n";
  }
  for (const std::string& notice : NoticesOf(devices, own)) std::cout << notice << "\n";
  std::cout << std::flush;
}

absl::Status Devices(const DevicesFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const std::string path, ClusterFileOr(flags.cluster));
  LIME_ASSIGN_OR_RETURN(const ClusterFile file, ClusterFile::Open(path, flags.insecure));
  LIME_ASSIGN_OR_RETURN(const DescribedCluster stored, StoredProfiles(file.path));
  const std::vector<Seen> seen = Ask(file, stored);
  json root = {{"cluster", file.Name()}, {"cluster_file", file.path}, {"devices", json::array()}};
  for (const Seen& device : seen) root["devices"].push_back(DeviceJson(device));
  root["notices"] = NoticesOf(seen, file.keys);
  if (!flags.json) Print(seen, file.keys);
  const auto silent = std::ranges::count_if(seen, [](const Seen& device) { return !device.health.ok(); });
  absl::Status problem;
  if (silent > 0) {
    problem = absl::UnavailableError(absl::StrCat(silent, " of ", seen.size(), " devices ", silent == 1 ? "does" : "do", " not answer as ",
                                                  silent == 1 ? "it" : "they", " should; run `lime doctor --cluster ", file.path,
                                                  "` to learn why"));
  }
  return Answered(root, flags.json, problem);
}

}  // namespace

void AddDevicesCommand(Commands& commands) {
  const auto [command, flags] =
      commands.Add<DevicesFlags>("devices", "List the devices of a cluster, whether they answer, and their profiles",
                                 "Example: lime devices --cluster shelf.toml\nNumerics, disk and links are from the last `lime profile "
                                 "--cluster`; the present rate of "
                                 "links is known only while a plan is in use. Exit code 1 if a device does not answer.",
                                 Devices);
  AddClusterFlag(command, flags.cluster);
  command.Add("--insecure", &flags.insecure, "Talk to other machines without keys");
  command.Add("--json", &flags.json, "Print one JSON object and nothing else on stdout");
}

}  // namespace lime::cli
