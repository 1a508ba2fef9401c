#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/inspect/inspect.h"
#include "daemon/machine/block_device.h"
#include "daemon/machine/files.h"
#include "daemon/profile/measure_disk.h"

namespace lime {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kLittleRoom = kGiB;
constexpr Bytes kReadAtOnce = kMiB;
constexpr int kMaxFiles = 4096;  // of a folder, at most

struct FileSystem {
  uint32_t type;  // as statfs says
  const char* name;
  const char* slow = "";  // why weights should not be there; empty: they may
};
constexpr FileSystem kFileSystems[] = {{EXT4_SUPER_MAGIC, "ext4"},
                                       {XFS_SUPER_MAGIC, "xfs"},
                                       {BTRFS_SUPER_MAGIC, "btrfs"},
                                       {F2FS_SUPER_MAGIC, "f2fs"},
                                       {OVERLAYFS_SUPER_MAGIC, "overlay"},
                                       {TMPFS_MAGIC, "tmpfs", "its files use memory"},
                                       {RAMFS_MAGIC, "ramfs", "its files use memory"},
                                       {NFS_SUPER_MAGIC, "NFS", "every read goes over the network"},
                                       {SMB_SUPER_MAGIC, "SMB", "every read goes over the network"},
                                       {SMB2_SUPER_MAGIC, "SMB", "every read goes over the network"},
                                       {0x65735546, "FUSE", "a program stands between limed and the disk"}};

FileSystem FileSystemOf(const std::string& folder) {
  struct statfs status = {};
  if (statfs(folder.c_str(), &status) != 0) return {0, "an unknown file system"};
  const auto found = std::ranges::find(kFileSystems, static_cast<uint32_t>(status.f_type), &FileSystem::type);
  return found != std::end(kFileSystems) ? *found : FileSystem{0, "another file system"};
}

// The largest file in or below the folder, to measure with. Empty if none has a megabyte.
std::string LargestFile(const std::string& folder) {
  std::string largest;
  Bytes most = kReadAtOnce - 1;
  int seen = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end && ++seen <= kMaxFiles; it.increment(error)) {
    std::error_code ignored;
    const auto bytes = it->is_regular_file(ignored) ? static_cast<Bytes>(it->file_size(ignored)) : 0;
    if (!ignored && bytes > most) most = bytes, largest = it->path().string();
  }
  return largest;
}

// Describes reads of the file: "1.20 GB/s, O_DIRECT through io_uring".
std::string Reads(const std::string& file, double seconds, Finding& finding) {
  const absl::StatusOr<std::unique_ptr<BlockDevice>> device = OpenBlockDevice({file}, {});
  if (!device.ok()) {
    finding.grade = Grade::kFail;
    finding.remedy = "let the user of limed read it";
    return std::string(device.status().message());
  }
  std::string how = (*device)->Describe();
  const auto warn = [&](const char* remedy) {
    if (finding.grade == Grade::kOk) finding.grade = Grade::kWarn, finding.remedy = remedy;
  };
  if (how.find("O_DIRECT") == how.npos)
    warn("put them on a file system with direct reads, such as ext4: buffered reads use memory that others need");
  if (how.find("io_uring") == how.npos)
    warn(
        "let limed use io_uring (sysctl kernel.io_uring_disabled, or the container's list of system calls): without it, threads read, "
        "which is slower");
  if (seconds <= 0) return how;
  const absl::StatusOr<std::vector<DiskPoint>> points =
      MeasureDisk({file}, {.seconds = seconds, .memory = 16 * kMiB, .spread = 16 * kMiB, .read_bytes = {kReadAtOnce}, .depths = {8}});
  if (!points.ok() || points->empty()) return how;
  return absl::StrFormat("%.2f GB/s, %s", points->front().bytes_per_second / 1e9, how);
}

// A folder that does not exist yet will be on the disk of its nearest existing parent.
std::string ExistingPart(const std::string& named) {
  fs::path folder = fs::absolute(named).lexically_normal();
  std::error_code ignored;
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  return folder.string();
}

}  // namespace

Finding InspectDisk(const std::string& check, const std::string& named, bool writes, double seconds) {
  Finding finding{.check = check};
  std::error_code error;
  const std::string folder = writes ? ExistingPart(named) : named;
  if (!fs::is_directory(folder, error))
    return {check, Grade::kFail,
            absl::StrCat(folder, error && error.value() != ENOENT ? absl::StrCat(": ", error.message()) : " is not there"),
            "make the folder, or name another one in the cluster's file"};
  const FileSystem system = FileSystemOf(folder);
  const absl::StatusOr<Bytes> room = FreeDiskBytes(folder);
  finding.what = absl::StrCat(named, ": ", system.name, ", ", room.ok() ? absl::StrCat(FormatBytes(*room), " free") : "free space unknown");
  if (writes && access(folder.c_str(), W_OK) != 0)
    return {check, Grade::kFail, absl::StrCat(finding.what, ", but limed may not write there"),
            "let the user of limed write there, or name another folder"};
  if (*system.slow != 0) {
    finding.grade = Grade::kWarn;
    absl::StrAppend(&finding.what, ", where ", system.slow);
    finding.remedy = "name a folder on a disk of that machine";
  } else if (writes && room.ok() && *room < kLittleRoom) {
    finding.grade = Grade::kWarn;
    finding.remedy = "free some space there";
  }
  const std::string file = LargestFile(named);
  absl::StrAppend(&finding.what, "; ", file.empty() ? "it holds no file to measure reads with" : Reads(file, seconds, finding));
  return finding;
}

}  // namespace lime
