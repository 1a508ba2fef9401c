// Every change that preparing a store makes to the disk is one call here. Tests use these calls to
// stop a preparation or to fill the disk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "daemon/formats/block_store_hash.h"
#include "daemon/machine/files.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// A full disk is kResourceExhausted, with the bytes needed and the bytes free.
class StoreDisk {
 public:
  virtual ~StoreDisk() = default;
  virtual absl::Status MakeFolder(const std::string& dir);
  // Creates a file and reserves `bytes`. So a full disk is found before the data is written, and
  // the file has few extents.
  virtual absl::StatusOr<FileDescriptor> Create(const std::string& path, Bytes bytes);
  // Opens a file for writes at any offset. Creates it if it is missing, with holes up to `bytes`.
  virtual absl::StatusOr<FileDescriptor> OpenSparse(const std::string& path, Bytes bytes);
  virtual absl::Status Write(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<const std::byte> data);
  virtual absl::Status Sync(const FileDescriptor& file, const std::string& path);
  // Durable when it returns. A missing file is no error.
  virtual absl::Status Rename(const std::string& from, const std::string& to);
  virtual absl::Status Remove(const std::string& path);
  // Bytes that this process may still write on the file system of `dir`.
  virtual absl::StatusOr<Bytes> FreeBytes(const std::string& dir);
};

// "PATH: needs 2.00 GiB and 1.00 GiB are free there; make room and run the same command". With
// `resumes`, the sentence adds that the same command continues where it stopped.
absl::Status DiskFull(const std::string& path, Bytes needed, Bytes free, bool resumes = true);

// Sends written bytes to the disk and drops them from the page cache, a little behind the writer.
class WriteBehind {
 public:
  // [begin, end) was written. Starts its write to the disk, waits for the range before, and drops
  // that range from the cache.
  void Wrote(const FileDescriptor& file, int64_t begin, int64_t end);

 private:
  int64_t begin_ = 0, end_ = 0;  // the range whose write was started
};

// A file that is written from beginning to end and hashed on the way. Its name is PATH.partial
// until Finish(). Written bytes leave the page cache soon after.
class StoreFileWriter {
 public:
  static absl::StatusOr<StoreFileWriter> Create(StoreDisk& disk, const std::string& path, StoredFile shape);
  // Removes the partial file unless Finish() succeeded.
  ~StoreFileWriter();
  StoreFileWriter(StoreFileWriter&&) = default;

  absl::Status Append(std::span<const std::byte> data);
  // REQUIRES: all bytes were appended.
  absl::StatusOr<StoredFile> Finish();

 private:
  StoreFileWriter(StoreDisk& disk, std::string path, FileDescriptor file, Bytes bytes, FileHashes hashes)
      : disk_(disk), path_(std::move(path)), file_(std::move(file)), bytes_(bytes), hashes_(std::move(hashes)) {}
  std::string partial_path() const { return path_ + ".partial"; }

  StoreDisk& disk_;
  std::string path_;
  FileDescriptor file_;  // invalid once finished
  Bytes bytes_;
  FileHashes hashes_;
  int64_t done_ = 0;
  WriteBehind behind_;
};

// Writes a small file as a whole: afterwards it is absent or complete.
absl::StatusOr<StoredFile> WriteStoreText(StoreDisk& disk, const std::string& path, std::string_view text);

}  // namespace lime
