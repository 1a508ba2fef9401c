// cluster.toml, and the keys it names: what every command that talks to devices begins with.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/cluster/cluster_config.h"
#include "coordinator/rpc/device_client.h"

namespace lime::cli {

struct ClusterFile {
  std::string path;
  ClusterConfig config;
  ClusterKeys keys;  // of the coordinator; empty: connections are not encrypted

  // Every device has an address; one that others can reach needs keys unless `insecure` is spelled out.
  // Paths of devices of this machine are whole ones then. No two have the same, unless `distinct` is false: for `lime down`, which asks no
  // device.
  static absl::StatusOr<ClusterFile> Open(const std::string& path, bool insecure, bool distinct = true);

  // Likewise, of a file that this user owns and nobody else may write or replace: PermissionDenied says who may.
  static absl::StatusOr<ClusterFile> OpenOwn(const std::string& path, bool insecure, bool distinct = true);

  // Its own, or after the file.
  std::string Name() const;
  // A path that the file names relative to itself; `~/` is this user's home.
  std::string Beside(const std::string& named) const;
  // The path without links, the same from every folder.
  std::string FullPath() const;
  std::vector<std::unique_ptr<DeviceClient>> Clients() const;

 private:
  void MakeWhole(ClusterConfig::Device& device) const;
  static absl::StatusOr<ClusterFile> Parse(const std::string& path, const std::string& text, bool insecure, bool distinct);
};

// The model that the cluster's file names, where the call names none. A wrong call where neither does.
absl::Status TakeModelOf(const std::string& cluster, std::string& model);

// Calls `what` with 0 to count - 1, each on a thread of its own; returns when all have.
void AtOnce(size_t count, const std::function<void(size_t)>& what);
// The same, and what each has answered, in order.
template <typename Ask>
auto AskAll(size_t count, const Ask& ask) {
  std::vector<decltype(ask(size_t{0}))> answers(count);
  AtOnce(count, [&](size_t i) { answers[i] = ask(i); });
  return answers;
}

// What to type where no limed listens at the device's address: `lime up` where that can start it.
std::string HowToStart(const ClusterConfig::Device& device, const std::string& path);

}  // namespace lime::cli
