#include "daemon/stores/block_store_disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"

namespace lime {
namespace {

namespace fs = std::filesystem;

Bytes FreeBeside(const std::string& path) {
  const std::string dir = fs::path(path).parent_path().string();
  return FreeDiskBytes(dir.empty() ? "." : dir).value_or(0);
}

}  // namespace

absl::Status DiskFull(const std::string& path, Bytes needed, Bytes free, bool resumes) {
  const std::string numbers =
      absl::StrCat(path, ": needs ", FormatBytes(needed), " (", needed, " bytes), and the disk has ", FormatBytes(free), " free");
  const char* const cause = free >= needed ? ", but it holds no more files or a quota is used up" : "";
  return absl::ResourceExhaustedError(absl::StrCat(numbers, cause, "; free some space and run the same command again",
                                                   resumes ? ", which continues where it stopped" : ""));
}

absl::Status StoreDisk::MakeFolder(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return ErrnoStatus(error.value(), dir, "make the folder");
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> StoreDisk::Create(const std::string& path, Bytes bytes) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid() && errno == ENOSPC) return DiskFull(path, bytes, FreeBeside(path));
  if (!file.valid()) return ErrnoStatus(errno, path, "create");
  const int error = bytes > 0 ? ::posix_fallocate(file.get(), 0, bytes) : 0;
  if (error == 0 || error == EOPNOTSUPP || error == EINVAL) return file;
  const absl::Status status =
      error == ENOSPC ? DiskFull(path, bytes, FreeBeside(path)) : ErrnoStatus(error, path, absl::StrCat("reserve ", FormatBytes(bytes)));
  ::unlink(path.c_str());
  return status;
}

absl::StatusOr<FileDescriptor> StoreDisk::OpenSparse(const std::string& path, Bytes bytes) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file.valid() && errno == ENOSPC) return DiskFull(path, bytes, FreeBeside(path));
  if (!file.valid()) return ErrnoStatus(errno, path, "create");
  LIME_ASSIGN_OR_RETURN(const Bytes now, FileBytes(file, path));
  if (now != bytes && ::ftruncate(file.get(), bytes) != 0) return ErrnoStatus(errno, path, absl::StrCat("make ", bytes, " bytes long"));
  return file;
}

absl::Status StoreDisk::Write(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<const std::byte> data) {
  const absl::Status status = WriteExactly(file, path, offset, data);
  return absl::IsResourceExhausted(status) ? DiskFull(path, static_cast<Bytes>(data.size()), FreeBeside(path)) : status;
}

absl::Status StoreDisk::Sync(const FileDescriptor& file, const std::string& path) {
  if (::fsync(file.get()) == 0) return absl::OkStatus();
  return errno == ENOSPC ? DiskFull(path, 0, FreeBeside(path)) : ErrnoStatus(errno, path, "sync");
}

absl::Status StoreDisk::Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return ErrnoStatus(errno, from, absl::StrCat("rename to ", to));
  return SyncDirectoryOf(to);
}

absl::Status StoreDisk::Remove(const std::string& path) {
  if (::unlink(path.c_str()) == 0) return SyncDirectoryOf(path);
  return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, path, "remove");
}

absl::StatusOr<Bytes> StoreDisk::FreeBytes(const std::string& dir) {
  return FreeDiskBytes(dir);
}

void WriteBehind::Wrote([[maybe_unused]] const FileDescriptor& file, int64_t begin, int64_t end) {
#ifdef SYNC_FILE_RANGE_WRITE
  ::sync_file_range(file.get(), begin, end - begin, SYNC_FILE_RANGE_WRITE);
  if (begin_ < end_) {
    ::sync_file_range(file.get(), begin_, end_ - begin_, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(file.get(), begin_, end_ - begin_, POSIX_FADV_DONTNEED);
  }
#endif
  begin_ = begin;
  end_ = end;
}

absl::StatusOr<StoreFileWriter> StoreFileWriter::Create(StoreDisk& disk, const std::string& path, StoredFile shape) {
  const Bytes bytes = shape.bytes;
  LIME_ASSIGN_OR_RETURN(FileDescriptor file, disk.Create(path + ".partial", bytes));
  return StoreFileWriter(disk, path, std::move(file), bytes, FileHashes(std::move(shape)));
}

StoreFileWriter::~StoreFileWriter() {
  if (file_.valid()) disk_.Remove(partial_path()).IgnoreError();
}

absl::Status StoreFileWriter::Append(std::span<const std::byte> data) {
  LIME_CHECK_LE(done_ + static_cast<int64_t>(data.size()), bytes_) << path_;
  hashes_.Add(data);
  LIME_RETURN_IF_ERROR(disk_.Write(file_, partial_path(), done_, data));
  behind_.Wrote(file_, done_, done_ + static_cast<int64_t>(data.size()));
  done_ += static_cast<int64_t>(data.size());
  return absl::OkStatus();
}

absl::StatusOr<StoredFile> StoreFileWriter::Finish() {
  LIME_CHECK_EQ(done_, bytes_) << path_;
  LIME_RETURN_IF_ERROR(disk_.Sync(file_, partial_path()));
#ifdef POSIX_FADV_DONTNEED
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
#endif
  LIME_RETURN_IF_ERROR(disk_.Rename(partial_path(), path_));
  file_ = FileDescriptor();
  return hashes_.Finish(fs::path(path_).filename().string());
}

absl::StatusOr<StoredFile> WriteStoreText(StoreDisk& disk, const std::string& path, std::string_view text) {
  LIME_ASSIGN_OR_RETURN(StoreFileWriter writer, StoreFileWriter::Create(disk, path, {.bytes = static_cast<Bytes>(text.size())}));
  LIME_RETURN_IF_ERROR(writer.Append(std::as_bytes(std::span(text))));
  return writer.Finish();
}

}  // namespace lime
