// Everything that preparing a store does to the disk, one call each: the seam where tests end it or fill the disk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "daemon/weights/block_store_hash.h"
#include "daemon/weights/files.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// A full disk is kResourceExhausted, with what was needed and what is free.
class StoreDisk {
 public:
  virtual ~StoreDisk() = default;
  virtual absl::Status MakeFolder(const std::string& dir);
  // Reserves `bytes`, so that a full disk is told before they are written and the file lies in few extents.
  virtual absl::StatusOr<FileDescriptor> Create(const std::string& path, Bytes bytes);
  // For a file that is written here and there: made where it is missing, holes as far as `bytes`.
  virtual absl::StatusOr<FileDescriptor> OpenSparse(const std::string& path, Bytes bytes);
  virtual absl::Status Write(const FileDescriptor& file, const std::string& path, int64_t offset, std::span<const std::byte> data);
  virtual absl::Status Sync(const FileDescriptor& file, const std::string& path);
  // Durable when it returns. A missing file is no error.
  virtual absl::Status Rename(const std::string& from, const std::string& to);
  virtual absl::Status Remove(const std::string& path);
  // What the file system of `dir` has left for us.
  virtual absl::StatusOr<Bytes> FreeBytes(const std::string& dir);
};

// "PATH: needs 2.00 GiB and 1.00 GiB are free there; make room and run the same command", which goes on where it stopped if it `resumes`.
absl::Status DiskFull(const std::string& path, Bytes needed, Bytes free, bool resumes = true);

// Written bytes on their way to the disk and out of the page cache, behind the one who writes.
class WriteBehind {
 public:
  // [begin, end) was written. Starts that, waits for what came before, and drops it from the cache.
  void Wrote(const FileDescriptor& file, int64_t begin, int64_t end);

 private:
  int64_t begin_ = 0, end_ = 0;  // started
};

// A file that grows from its beginning under the name PATH.partial, is hashed on the way, and takes its own name in Finish(). What has been
// written leaves the page cache soon after.
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

// A whole small file: absent or complete.
absl::StatusOr<StoredFile> WriteStoreText(StoreDisk& disk, const std::string& path, std::string_view text);

}  // namespace lime
