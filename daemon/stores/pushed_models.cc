#include "daemon/stores/pushed_models.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "daemon/formats/held_blocks.h"
#include "daemon/machine/files.h"
#include "daemon/stores/pushed_store.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRemoved = ".removed-";
constexpr Bytes kMaxNameBytes = 512;

// The folders in `root`; links to folders do not count.
absl::StatusOr<std::vector<std::string>> FoldersIn(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->symlink_status(error).type() == fs::file_type::directory) names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) return ErrnoStatus(error.value(), root, "read the folder");
  std::ranges::sort(names);
  return names;
}

// Bytes allocated on the disk; holes do not count.
Bytes DiskBytesOf(const std::string& dir) {
  Bytes bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(dir, error), end; !error && entry != end; entry.increment(error)) {
    struct stat info = {};
    if (::lstat(entry->path().c_str(), &info) == 0) bytes += static_cast<Bytes>(info.st_blocks) * 512;
  }
  return bytes;
}

absl::Time LastUse(const std::string& dir) {
  struct stat info = {};
  if (::stat(absl::StrCat(dir, "/", kHeldBlocksName).c_str(), &info) != 0 && ::stat(dir.c_str(), &info) != 0) return absl::UnixEpoch();
  return absl::TimeFromTimespec(info.st_mtim);
}

PushedModel Describe(const std::string& dir, uint64_t model) {
  PushedModel pushed{.model = model, .dir = dir, .bytes = DiskBytesOf(dir), .used = LastUse(dir)};
  if (const absl::StatusOr<std::string> name = ReadTextFile(absl::StrCat(dir, "/", kPushedNameFile), kMaxNameBytes); name.ok())
    pushed.name = *name;
  const absl::StatusOr<PushedManifest> manifest = ReadPushedManifest(dir);
  if (!manifest.ok()) return pushed;
  pushed.held = static_cast<int32_t>(manifest->held.held.size());
  pushed.blocks = static_cast<int32_t>(BlocksOf(manifest->manifest).size());
  return pushed;
}

}  // namespace

absl::StatusOr<std::vector<PushedModel>> ListPushed(const std::string& root) {
  LIME_ASSIGN_OR_RETURN(const std::vector<std::string> folders, FoldersIn(root));
  std::vector<PushedModel> models;
  for (const std::string& folder : folders) {
    if (const std::optional<uint64_t> model = ParseHash(folder)) models.push_back(Describe(absl::StrCat(root, "/", folder), *model));
  }
  return models;
}

absl::StatusOr<Bytes> RemovePushed(const std::string& root, uint64_t model) {
  const std::string dir = PushedFolder(root, model);
  const FileDescriptor folder(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.valid()) return ErrnoStatus(errno, dir, "open the folder");
  if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0)
    return absl::FailedPreconditionError(absl::StrCat(dir, ": a push to this folder is running; wait for its end, or interrupt it"));
  const Bytes bytes = DiskBytesOf(dir);
  EndRemovals(root);
  const std::string removed = absl::StrCat(root, "/", Text(kRemoved), fs::path(dir).filename().string());
  if (::rename(dir.c_str(), removed.c_str()) != 0) return ErrnoStatus(errno, dir, "remove");
  LIME_RETURN_IF_ERROR(SyncDirectoryOf(removed));
  std::error_code error;
  fs::remove_all(removed, error);
  if (error) return ErrnoStatus(error.value(), removed, "remove");
  return bytes;
}

void EndRemovals(const std::string& root) {
  if (root.empty()) return;
  const absl::StatusOr<std::vector<std::string>> folders = FoldersIn(root);
  if (!folders.ok()) return;
  for (const std::string& folder : *folders) {
    std::error_code ignored;
    const bool ours = folder.starts_with(kRemoved) && ParseHash(std::string_view(folder).substr(kRemoved.size()));
    if (ours) fs::remove_all(fs::path(root) / folder, ignored);
  }
}

void NotePushedUse(const std::string& dir) {
  (void)::utimensat(AT_FDCWD, absl::StrCat(dir, "/", kHeldBlocksName).c_str(), nullptr, 0);
}

absl::StatusOr<DiskRoom> DiskRoomOf(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::path there = std::filesystem::absolute(folder, ignored);
  while (there.has_relative_path() && !std::filesystem::exists(there, ignored)) there = there.parent_path();
  struct statvfs disk;
  if (::statvfs(there.c_str(), &disk) != 0) return ErrnoStatus(errno, there.string(), "statvfs");
  const auto block = static_cast<Bytes>(disk.f_frsize);
  return DiskRoom{.free = static_cast<Bytes>(disk.f_bavail) * block, .total = static_cast<Bytes>(disk.f_blocks) * block};
}

}  // namespace lime
