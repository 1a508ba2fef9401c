// Reads cluster.toml and the keys that it names. Every command that talks to devices begins with
// it.
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
  ClusterKeys keys;  // the coordinator's; empty: no encryption

  // Opens the file and makes paths on this machine absolute. Every device must have an address; an
  // address that other machines can reach needs keys, unless `insecure`. Two devices may have one
  // address only if `distinct` is false: for `lime down`, which asks no device.
  static absl::StatusOr<ClusterFile> Open(const std::string& path, bool insecure, bool distinct = true);

  // Open, for a file that belongs to this user and that nobody else may write or replace. Otherwise
  // PermissionDenied, which says who may.
  static absl::StatusOr<ClusterFile> OpenOwn(const std::string& path, bool insecure, bool distinct = true);

  // The name in the file, else the file's own name.
  std::string Name() const;
  // A path in the file, relative to its folder; `~/` is this user's home.
  std::string Beside(const std::string& named) const;
  // The absolute path without symbolic links.
  std::string FullPath() const;
  std::vector<std::unique_ptr<DeviceClient>> Clients() const;

 private:
  void MakeWhole(ClusterConfig::Device& device) const;
  static absl::StatusOr<ClusterFile> Parse(const std::string& path, const std::string& text, bool insecure, bool distinct);
};

// Uses the model that the cluster's file names, if the call names none. A wrong call if neither
// names one.
absl::Status UseModelOf(const std::string& cluster, std::string& model);

// Calls `what` with 0 to count - 1, each on a thread of its own. Returns when all calls have
// returned.
void AtOnce(size_t count, const std::function<void(size_t)>& what);
// AtOnce that returns the answers, in order.
template <typename Ask>
auto AskAll(size_t count, const Ask& ask) {
  std::vector<decltype(ask(size_t{0}))> answers(count);
  AtOnce(count, [&](size_t i) { answers[i] = ask(i); });
  return answers;
}

// The command that starts limed at the device's address: `lime up`, if it can start that device.
std::string HowToStart(const ClusterConfig::Device& device, const std::string& path);

}  // namespace lime::cli
