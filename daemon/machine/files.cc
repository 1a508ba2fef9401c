#include "daemon/machine/files.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/input/model_file.h"
#include "planner/base/strings.h"

namespace lime {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.Release();
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int FileDescriptor::Release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

absl::Status ErrnoStatus(int error, std::string_view path, std::string_view what) {
  const std::string message = absl::StrCat(Text(path), ": cannot ", Text(what), ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(message);
  if (error == ENOSPC || error == ENOMEM || error == EMFILE || error == EDQUOT) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

absl::StatusOr<FileDescriptor> OpenForReading(const std::string& path) {
  // Does not wait for the writer of a pipe.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.valid()) return file;
  const int error = errno;
  LIME_RETURN_IF_ERROR(RefuseDeadLink(path));
  return ErrnoStatus(error, path, "open");
}

absl::StatusOr<Bytes> FileBytes(const FileDescriptor& file, const std::string& path) {
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, path, "stat");
  if (S_ISDIR(info.st_mode)) return Invalid(path, ": is a folder; name a file");
  if (!S_ISREG(info.st_mode)) return Invalid(path, ": is not a regular file");
  return static_cast<Bytes>(info.st_size);
}

absl::StatusOr<Bytes> FreeDiskBytes(const std::string& folder) {
  struct statvfs disk;
  if (::statvfs(folder.c_str(), &disk) != 0) return ErrnoStatus(errno, folder, "statvfs");
  return static_cast<Bytes>(disk.f_bavail) * static_cast<Bytes>(disk.f_frsize);
}

bool FileExists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

bool HasBytes(const std::string& path, Bytes bytes) {
  std::error_code error;
  return std::filesystem::file_size(path, error) == static_cast<uintmax_t>(bytes) && !error;
}

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos && name[0] != '.';
}

absl::Status ReadExactly(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<std::byte> out) {
  for (size_t done = 0; done < out.size();) {
    const ssize_t got = ::pread(file.get(), out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, path, absl::StrCat("read at offset ", offset + static_cast<int64_t>(done)));
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path, ": ends at offset ", offset + static_cast<int64_t>(done), ", before ",
                                              offset + static_cast<int64_t>(out.size()), "; copy or download the file again"));
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status WriteExactly(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<const std::byte> data) {
  for (size_t done = 0; done < data.size();) {
    const ssize_t put = ::pwrite(file.get(), data.data() + done, data.size() - done, offset + static_cast<int64_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(errno, path, absl::StrCat("write at offset ", offset + static_cast<int64_t>(done)));
    done += static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, Bytes limit) {
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
  LIME_ASSIGN_OR_RETURN(const Bytes bytes, FileBytes(file, path));
  if (bytes > limit) return Invalid(path, ": has ", bytes, " bytes, more than the limit of ", limit, " for such a file");
  std::string text(static_cast<size_t>(bytes), '\0');
  LIME_RETURN_IF_ERROR(ReadExactly(file, path, 0, std::as_writable_bytes(std::span(text))));
  return text;
}

absl::StatusOr<std::string> ReadNamedText(const std::string& path, Bytes limit) {
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, path, "stat");
  if (!S_ISFIFO(info.st_mode)) return ReadTextFile(path, limit);
  // From now on, wait for the writer of a pipe.
  if (::fcntl(file.get(), F_SETFL, 0) != 0) return ErrnoStatus(errno, path, "read");
  std::string text;
  for (char some[4096];;) {
    const ssize_t got = ::read(file.get(), some, sizeof(some));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, path, "read");
    if (got == 0) return text;
    text.append(some, static_cast<size_t>(got));
    if (static_cast<Bytes>(text.size()) > limit) return Invalid(path, ": has more bytes than the limit of ", limit, " for such a file");
  }
}

absl::Status SyncDirectoryOf(const std::string& path) {
  const std::string dir = std::filesystem::path(path).parent_path().string();
  const FileDescriptor fd(::open(dir.empty() ? "." : dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, dir, "open the folder");
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return ErrnoStatus(errno, dir, "sync the folder");
  return absl::OkStatus();
}

std::string UserName(uid_t user) {
  struct passwd entry = {};
  struct passwd* found = nullptr;
  char buffer[4096];
  if (getpwuid_r(user, &entry, buffer, sizeof(buffer), &found) == 0 && found != nullptr) return found->pw_name;
  return absl::StrCat("user ", user);
}

}  // namespace lime
