// A read-only view of a whole file.
#pragma once

#include <memory>
#include <string>

#include "daemon/machine/files.h"
#include "daemon/machine/unreadable_pages.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// Mapped with MAP_PRIVATE: this process never changes the file. The descriptor stays open, to
// notice when the file becomes shorter.
class MappedFile {
 public:
  // `bytes` is the size that the headers were checked against. A file of another size is refused,
  // since touching a page beyond its end would kill the process.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Map(const std::string& path, Bytes bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  const std::string& path() const { return path_; }

  // Makes the pages of a range present; reads them if they are not cached. A page that cannot be
  // read is an error, not a signal.
  absl::Status Populate(int64_t offset, Bytes bytes) const;
  // Does the same with plain reads. Kernels older than 5.14 have no other way that fails without a
  // signal.
  absl::Status PopulateByReading(int64_t offset, Bytes bytes) const;
  // kDataLoss if the file is shorter than when it was mapped. The kernel may show zeros beyond the
  // end instead of a signal: pages of one large folio stay mapped when only part of it is cut off.
  absl::Status CheckNotTruncated() const;
  // Releases the pages of a range: they stay in the page cache, and no longer count as memory of
  // this process.
  void Release(int64_t offset, Bytes bytes) const;

 private:
  MappedFile(std::string path, FileDescriptor file, const std::byte* data, Bytes bytes)
      : path_(std::move(path)),
        file_(std::move(file)),
        data_(data),
        bytes_(bytes),
        range_(data, static_cast<size_t>(bytes), path_.c_str()) {}

  const std::string path_;
  const FileDescriptor file_;
  const std::byte* const data_;
  const Bytes bytes_;
  const MappedRange range_;  // names the file if a page is lost later
};

}  // namespace lime
