#include "coordinator/cli/cluster_file.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/weights/files.h"
#include "proto/address.h"

namespace lime::cli {
namespace {

namespace fs = std::filesystem;

absl::Status CheckAddress(const ClusterFile& file, const ClusterConfig::Device& device, bool insecure) {
  const std::string where = absl::StrCat(file.path, " line ", device.line, ": device \"", device.name, "\"");
  if (device.address.empty()) return absl::InvalidArgumentError(absl::StrCat(where, " has no address; add address = \"HOST:PORT\""));
  const absl::StatusOr<bool> loopback = IsLoopback(device.address);
  if (!loopback.ok()) return absl::InvalidArgumentError(absl::StrCat(where, ": ", loopback.status().message()));
  if (*loopback || !file.config.tls.empty() || insecure) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(where,
                                                 " is another machine, and [cluster] names no keys: make them with `lime keys` and add "
                                                 "tls = \"FOLDER\", or give --insecure"));
}

// Names are not looked up: that may take seconds.
bool IsOfThisMachine(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseAddress(address);
  if (!parsed.ok()) return false;
  const std::vector<std::string> own = OwnAddresses();
  return IsLoopback(address).value_or(false) || std::ranges::find(own, parsed->host) != own.end();
}

}  // namespace

absl::StatusOr<ClusterFile> ClusterFile::Open(const std::string& path, bool insecure) {
  ClusterFile file{.path = path};
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxClusterBytes + 1));
  LIME_ASSIGN_OR_RETURN(file.config, ParseClusterConfig(text, path));
  for (const ClusterConfig::Device& device : file.config.devices) LIME_RETURN_IF_ERROR(CheckAddress(file, device, insecure));
  if (file.config.tls.empty()) return file;
  LIME_ASSIGN_OR_RETURN(file.keys, ClusterKeys::Read(file.Beside(file.config.tls), kCoordinatorName));
  return file;
}

std::string ClusterFile::Name() const {
  return config.name.empty() ? fs::path(path).stem().string() : config.name;
}

std::string ClusterFile::Beside(const std::string& relative) const {
  return (fs::absolute(path).parent_path() / relative).lexically_normal().string();
}

std::vector<std::unique_ptr<DeviceClient>> ClusterFile::Clients() const {
  std::vector<std::unique_ptr<DeviceClient>> clients;
  for (const ClusterConfig::Device& device : config.devices)
    clients.push_back(std::make_unique<DeviceClient>(device.name, device.address, keys, HowToStart(device, path)));
  return clients;
}

std::string HowToStart(const ClusterConfig::Device& device, const std::string& path) {
  if (!device.ssh.empty() || IsOfThisMachine(device.address)) return absl::StrCat("`lime up --cluster ", path, "` starts it");
  return absl::StrCat("start limed there (`limed --name ", device.name, " --listen ", device.address,
                      " ...`), or give the device ssh = \"USER@HOST\", so that `lime up` can");
}

}  // namespace lime::cli
