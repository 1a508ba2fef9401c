// Small files and file descriptors: the file system calls that readers of a checkpoint need.
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

// Status of a failed system call: "PATH: cannot DO: reason". kNotFound for a missing file,
// otherwise kUnavailable.
absl::Status ErrnoStatus(int error, std::string_view path, std::string_view what);

absl::StatusOr<FileDescriptor> OpenForReading(const std::string& path);
absl::StatusOr<Bytes> FileBytes(const FileDescriptor& file, const std::string& path);
bool FileExists(const std::string& path);
bool HasBytes(const std::string& path, Bytes bytes);  // it exists and has this size
// Bytes that this process may still write on the disk of `folder`.
absl::StatusOr<Bytes> FreeDiskBytes(const std::string& folder);
// True for a name without folders that is not hidden. Only such a name may refer from one file to
// another in the same folder.
bool IsPlainFileName(std::string_view name);

// Fills `out` from `offset`. Continues after short reads and EINTR. kDataLoss if the file ends
// before.
absl::Status ReadExactly(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<std::byte> out);
// Writes all of `data` at `offset`.
absl::Status WriteExactly(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<const std::byte> data);

// Returns the whole file as text. kInvalidArgument if it is longer than `limit`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, Bytes limit);
// Like ReadTextFile, for a file that the user names. It may be a pipe, such as <(COMMAND), and is
// read to its end.
absl::StatusOr<std::string> ReadNamedText(const std::string& path, Bytes limit);

// Writes a temporary file beside `path`, syncs it, and renames it. So `path` is either whole or
// absent.
absl::Status WriteTextFile(const std::string& path, std::string_view text);
// Makes a rename of `path` durable.
absl::Status SyncDirectoryOf(const std::string& path);

// The user's name for messages: "ann", or "user 1001" if the system knows no name. Thread: any.
std::string UserName(uid_t user);

}  // namespace lime
