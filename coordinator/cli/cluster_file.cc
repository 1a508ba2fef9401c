#include "coordinator/cli/cluster_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/command.h"
#include "daemon/weights/files.h"
#include "daemon/weights/user_name.h"
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

absl::Status CheckOwner(const FileDescriptor& file, const std::string& path) {
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return ErrnoStatus(errno, path, "stat");
  const char* const advice = "; `lime up` starts what it names, so give --cluster ";
  if (info.st_uid != geteuid())
    return absl::PermissionDeniedError(absl::StrCat(path, " belongs to ", UserName(info.st_uid), advice, path, " if you trust it"));
  if ((info.st_mode & S_IWOTH) != 0)
    return absl::PermissionDeniedError(
        absl::StrCat(path, " can be written by anybody", advice, path, " if you trust it, or run `chmod o-w ", path, "`"));
  return absl::OkStatus();
}

// Names are not looked up: that may take seconds.
bool HasOwnAddress(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseAddress(address);
  if (!parsed.ok()) return false;
  const std::vector<std::string> own = OwnAddresses();
  return IsLoopback(address).value_or(false) || std::ranges::find(own, parsed->host) != own.end();
}

}  // namespace

absl::StatusOr<ClusterFile> ClusterFile::Open(const std::string& path, bool insecure, bool distinct) {
  LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(ReadTextFile(path, kMaxClusterBytes + 1)));
  return Parse(path, text, insecure, distinct);
}

// The file that is checked is the file that is read, whatever takes its name meanwhile.
absl::StatusOr<ClusterFile> ClusterFile::OpenOwn(const std::string& path, bool insecure, bool distinct) {
  LIME_ASSIGN_OR_RETURN(const FileDescriptor opened, OfUser(OpenForReading(path)));
  LIME_RETURN_IF_ERROR(OfUser(CheckOwner(opened, path)));
  LIME_ASSIGN_OR_RETURN(const Bytes bytes, FileBytes(opened, path));
  if (bytes > kMaxClusterBytes) return WrongCall(absl::StrCat(path, ": is longer than ", FormatBytes(kMaxClusterBytes)));
  std::string text(static_cast<size_t>(bytes), '\0');
  LIME_RETURN_IF_ERROR(ReadExactly(opened, path, 0, std::as_writable_bytes(std::span(text))));
  return Parse(path, text, insecure, distinct);
}

absl::StatusOr<ClusterFile> ClusterFile::Parse(const std::string& path, const std::string& text, bool insecure, bool distinct) {
  ClusterFile file{.path = path};
  LIME_ASSIGN_OR_RETURN(file.config, OfUser(ParseClusterConfig(text, path)));
  if (distinct) LIME_RETURN_IF_ERROR(OfUser(CheckDistinctAddresses(file.config, path)));
  for (const ClusterConfig::Device& device : file.config.devices) LIME_RETURN_IF_ERROR(OfUser(CheckAddress(file, device, insecure)));
  if (file.config.tls.empty()) return file;
  LIME_ASSIGN_OR_RETURN(file.keys, OfUser(ClusterKeys::Read(file.Beside(file.config.tls), kCoordinatorName)));
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

absl::Status TakeModelOf(const std::string& cluster, std::string& model) {
  if (!model.empty() || cluster.empty()) return absl::OkStatus();
  ClusterFile file{.path = cluster};
  LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(ReadTextFile(cluster, kMaxClusterBytes + 1)));
  LIME_ASSIGN_OR_RETURN(file.config, OfUser(ParseClusterConfig(text, cluster)));
  if (file.config.model.empty())
    return WrongCall(absl::StrCat("no model: ", cluster, " names none; add model = \"FOLDER\" under [cluster], or give --model FOLDER"));
  model = file.Beside(file.config.model);
  return CheckModelFolder(model, absl::StrCat(cluster, ": model"));
}

std::string HowToStart(const ClusterConfig::Device& device, const std::string& path) {
  if (!device.ssh.empty() || HasOwnAddress(device.address)) return absl::StrCat("`lime up --cluster ", path, "` starts it");
  return absl::StrCat("start limed there (`limed --name ", device.name, " --listen ", device.address,
                      " ...`), or give the device ssh = \"USER@HOST\", so that `lime up` can");
}

}  // namespace lime::cli
