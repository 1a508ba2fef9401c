// Small files and descriptors: what every reader of a checkpoint needs of the file system.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// A file descriptor that closes itself.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release();

 private:
  int fd_ = -1;
};

// Status of a failed system call: "PATH: cannot DO: reason". Missing files are kNotFound, the rest kUnavailable.
absl::Status ErrnoStatus(int error, std::string_view path, std::string_view what);

absl::StatusOr<FileDescriptor> OpenForReading(const std::string& path);
absl::StatusOr<Bytes> FileBytes(const FileDescriptor& file, const std::string& path);
bool FileExists(const std::string& path);
// That this process may still write on the disk of a folder.
absl::StatusOr<Bytes> FreeDiskBytes(const std::string& folder);
// A name without folders that is not hidden: one that another file may send us to in its own folder.
bool IsPlainFileName(std::string_view name);

// Fills `out` from `offset`, over short reads and EINTR; an end of file before that is kDataLoss.
absl::Status ReadExactly(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<std::byte> out);
// Writes all of `data` at `offset`.
absl::Status WriteExactly(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<const std::byte> data);

// The whole file as text; one longer than `limit` is kInvalidArgument.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, Bytes limit);
// The same of a file that the user names, which may be a pipe, such as <(COMMAND): it is read to its end.
absl::StatusOr<std::string> ReadNamedText(const std::string& path, Bytes limit);

// Writes a temporary file beside `path`, syncs it, and renames it, so that `path` is either whole or absent.
absl::Status WriteTextFile(const std::string& path, std::string_view text);
// Makes a rename of `path` durable.
absl::Status SyncDirectoryOf(const std::string& path);

// A user for sentences: "ann", or "user 1001" where the system knows no name.  Thread: any.
std::string UserName(uid_t user);

}  // namespace lime
