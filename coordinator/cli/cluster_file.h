// cluster.toml, and the keys it names: what every command that talks to devices begins with.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/cluster/cluster_config.h"
#include "coordinator/rpc/device_client.h"

namespace lime::cli {

inline constexpr char kCoordinatorName[] = "coordinator";  // of its own keys

struct ClusterFile {
  std::string path;
  ClusterConfig config;
  ClusterKeys keys;  // of the coordinator; empty: connections are not encrypted

  // Every device has an address; one that others can reach needs keys unless `insecure` is spelled out.
  static absl::StatusOr<ClusterFile> Open(const std::string& path, bool insecure);

  // Its own, or after the file.
  std::string Name() const;
  // A path that the file names relative to itself.
  std::string Beside(const std::string& relative) const;
  std::vector<std::unique_ptr<DeviceClient>> Clients() const;
};

// What to type where no limed listens at the device's address: `lime up` where that can start it.
std::string HowToStart(const ClusterConfig::Device& device, const std::string& path);

}  // namespace lime::cli
