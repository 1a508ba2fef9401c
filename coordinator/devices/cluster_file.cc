#include "coordinator/devices/cluster_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/input/command_line.h"
#include "common/input/host_port.h"
#include "coordinator/cli/command.h"
#include "daemon/machine/files.h"
#include "proto/address.h"

namespace lime::cli {
namespace {

namespace fs = std::filesystem;

absl::Status CheckAddress(const ClusterFile& file, const ClusterConfig::Device& device, bool insecure) {
  const std::string where = absl::StrCat(file.path, " line ", device.line, ": device \"", device.name, "\"");
  if (device.address.empty()) return Invalid(where, " has no address; add address = \"HOST:PORT\"");
  const absl::StatusOr<bool> loopback = IsLoopback(device.address);
  if (!loopback.ok()) return Invalid(where, ": ", loopback.status().message());
  if (*loopback || !file.config.tls.empty() || insecure) return absl::OkStatus();
  return Invalid(where,
                 " is another machine, and [cluster] names no keys: make them with `lime keys` and add "
                 "tls = \"FOLDER\", or give --insecure");
}

// The folder of `path`, if any user may replace files in it; else empty. In a sticky folder only
// owners may.
std::string OpenFolderOf(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  struct stat info = {};
  const bool open = stat(folder.c_str(), &info) == 0 && (info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0;
  return open ? folder.string() : "";
}

// Checks the opened file, and the link that may lead to it.
absl::Status CheckOwner(const FileDescriptor& file, const std::string& path) {
  const auto refuse = [&path](const std::string& why, const std::string& mend) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, why, "; `lime up` runs programs that it names, so give --cluster ", path, " if you trust it", mend));
  };
  struct stat info = {}, link = {};
  if (fstat(file.get(), &info) != 0) return ErrnoStatus(errno, path, "stat");
  if (info.st_uid != geteuid()) return refuse(absl::StrCat(" belongs to ", UserName(info.st_uid)), "");
  if ((info.st_mode & S_IWOTH) != 0) return refuse(" can be written by everyone", absl::StrCat(", or run `chmod o-w ", path, "`"));
  if (lstat(path.c_str(), &link) != 0) return ErrnoStatus(errno, path, "stat");
  if (link.st_uid != geteuid()) return refuse(absl::StrCat(" is a link that belongs to ", UserName(link.st_uid)), "");
  std::error_code ignored;
  for (const fs::path& each : {fs::path(path), fs::canonical(path, ignored)}) {
    const std::string folder = OpenFolderOf(each);
    if (!folder.empty()) return refuse(" can be replaced by everyone", absl::StrCat(", or run `chmod o-w ", folder, "`"));
  }
  return absl::OkStatus();
}

// Names are not resolved, because that may take seconds.
bool HasOwnAddress(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseAddress(address);
  if (!parsed.ok()) return false;
  const std::vector<std::string> own = OwnAddresses();
  return IsLoopback(*parsed) || std::ranges::find(own, parsed->host) != own.end();
}

}  // namespace

absl::StatusOr<ClusterFile> ClusterFile::Open(const std::string& path, bool insecure, bool distinct) {
  LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(ReadTextFile(path, kMaxClusterBytes + 1)));
  return Parse(path, text, insecure, distinct);
}

// Checks the opened file itself, so the checked file is the file that is read even if it is
// replaced.
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
  LIME_ASSIGN_OR_RETURN(file.config, OfUser(ParseClusterConfig(text, path, distinct)));
  for (ClusterConfig::Device& device : file.config.devices) {
    LIME_RETURN_IF_ERROR(OfUser(CheckAddress(file, device, insecure)));
    if (device.ssh.empty()) file.MakeWhole(device);
  }
  if (file.config.tls.empty()) return file;
  const std::string folder = file.Beside(file.config.tls);
  absl::StatusOr<ClusterKeys> keys = ClusterKeys::Read(folder, kCoordinatorName);
  if (absl::IsNotFound(keys.status())) {
    return WrongCall(absl::StrCat(keys.status().message(), "; `lime keys --cluster ", AsTyped(path), " --out ", AsTyped(folder),
                                  "` makes the keys of this cluster"));
  }
  LIME_ASSIGN_OR_RETURN(file.keys, OfUser(std::move(keys)));
  return file;
}

std::string ClusterFile::Name() const {
  return config.name.empty() ? fs::path(path).stem().string() : config.name;
}

std::string ClusterFile::Beside(const std::string& named) const {
  const char* const home = std::getenv("HOME");
  if (named.starts_with("~/") && home != nullptr && *home == '/') return absl::StrCat(home, named.substr(1));
  return (fs::absolute(path).parent_path() / named).lexically_normal().string();
}

// A program name without a folder is searched on the PATH.
void ClusterFile::MakeWhole(ClusterConfig::Device& device) const {
  for (std::string* const named : {&device.weights, &device.store, &device.kv_dir, &device.tls, &device.limed}) {
    const bool on_path = named == &device.limed && named->find('/') == std::string::npos;
    const bool relative = !named->empty() && named->front() != '/';
    if (relative && !on_path) *named = Beside(*named);
  }
}

std::string ClusterFile::FullPath() const {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return (error ? fs::absolute(path).lexically_normal() : real).string();
}

std::vector<std::unique_ptr<DeviceClient>> ClusterFile::Clients() const {
  std::vector<std::unique_ptr<DeviceClient>> clients;
  for (const ClusterConfig::Device& device : config.devices)
    clients.push_back(std::make_unique<DeviceClient>(device.name, device.address, keys, HowToStart(device, path)));
  return clients;
}

absl::Status UseModelOf(const std::string& cluster, std::string& model) {
  if (!model.empty() || cluster.empty()) return absl::OkStatus();
  ClusterFile file{.path = cluster};
  LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(ReadTextFile(cluster, kMaxClusterBytes + 1)));
  LIME_ASSIGN_OR_RETURN(file.config, OfUser(ParseClusterConfig(text, cluster)));
  if (file.config.model.empty())
    return WrongCall(absl::StrCat("no model: ", cluster, " names none; add model = \"FOLDER\" under [cluster], or give --model FOLDER"));
  model = file.Beside(file.config.model);
  return CheckModelFolder(model, absl::StrCat(cluster, ": model"));
}

void AtOnce(size_t count, const std::function<void(size_t)>& what) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back(what, i);
  for (std::thread& thread : threads) thread.join();
}

std::string HowToStart(const ClusterConfig::Device& device, const std::string& path) {
  if (!device.ssh.empty() || HasOwnAddress(device.address)) return absl::StrCat("`lime up --cluster ", path, "` starts it");
  return absl::StrCat("start limed there (`limed --name ", device.name, " --listen ", device.address,
                      " ...`), or give the device ssh = \"USER@HOST\", so that `lime up` can start it");
}

}  // namespace lime::cli
