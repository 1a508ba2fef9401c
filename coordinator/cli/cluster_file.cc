#include "coordinator/cli/cluster_file.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/command.h"
#include "daemon/weights/files.h"

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
    clients.push_back(std::make_unique<DeviceClient>(device.name, device.address, keys));
  return clients;
}

absl::Status TakeModelOf(const std::string& cluster, std::string& model) {
  if (!model.empty() || cluster.empty()) return absl::OkStatus();
  ClusterFile file{.path = cluster};
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(cluster, kMaxClusterBytes + 1));
  LIME_ASSIGN_OR_RETURN(file.config, ParseClusterConfig(text, cluster));
  if (file.config.model.empty())
    return WrongCall(absl::StrCat("no model: ", cluster, " names none; add model = \"FOLDER\" under [cluster], or give --model FOLDER"));
  model = file.Beside(file.config.model);
  return absl::OkStatus();
}

}  // namespace lime::cli
