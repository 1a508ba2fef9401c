#include "daemon/weights/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

// The pages that touch, or with `inside` lie within, a range.
struct PageRange {
  void* address = nullptr;
  size_t bytes = 0;
};

PageRange PagesOf(const std::byte* data, int64_t offset, Bytes bytes, bool inside) {
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t begin = inside ? RoundUp(offset, page) : offset / page * page;
  const int64_t end = inside ? (offset + bytes) / page * page : offset + bytes;
  return {const_cast<std::byte*>(data) + begin, static_cast<size_t>(std::max<int64_t>(0, end - begin))};
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Map(const std::string& path, Bytes bytes) {
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
  LIME_ASSIGN_OR_RETURN(const Bytes now, FileBytes(file, path));
  if (now != bytes) {
    return absl::DataLossError(absl::StrCat(path, ": has ", now, " bytes, but had ", bytes, " when its header was read; load it again"));
  }
  void* data = bytes == 0 ? nullptr : ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, path, absl::StrCat("map ", FormatBytes(bytes)));
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<const std::byte*>(data), bytes));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(bytes_));
}

absl::Status MappedFile::Populate(int64_t offset, Bytes bytes) const {
  const PageRange range = PagesOf(data_, offset, bytes, /*inside=*/false);
  if (range.bytes == 0) return absl::OkStatus();
#ifdef MADV_POPULATE_READ
  int error = 0;
  do {
    error = ::madvise(range.address, range.bytes, MADV_POPULATE_READ) == 0 ? 0 : errno;
  } while (error == EINTR || error == EAGAIN);
  if (error == 0) return absl::OkStatus();
  if (error != EINVAL) {  // EINVAL: a kernel older than 5.14
    return absl::UnavailableError(
        absl::StrCat(path_, ": reading ", bytes, " bytes at offset ", offset,
                     " failed: ", error == EFAULT ? "the disk gave an error or the file was truncated" : std::strerror(error)));
  }
#endif
  ::madvise(range.address, range.bytes, MADV_WILLNEED);
  return absl::OkStatus();
}

void MappedFile::WillNeed(int64_t offset, Bytes bytes) const {
  const PageRange range = PagesOf(data_, offset, bytes, /*inside=*/false);
  if (range.bytes > 0) ::madvise(range.address, range.bytes, MADV_WILLNEED);
}

void MappedFile::Release(int64_t offset, Bytes bytes) const {
  const PageRange range = PagesOf(data_, offset, bytes, /*inside=*/true);
  if (range.bytes > 0) ::madvise(range.address, range.bytes, MADV_DONTNEED);
}

}  // namespace lime
