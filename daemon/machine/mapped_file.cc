#include "daemon/machine/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

// Bytes of one read, if the kernel cannot populate pages.
constexpr Bytes kTouchBytes = kMiB;

// The pages that a range touches, or with `inside` the pages that lie wholly in it.
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
  LIME_ASSIGN_OR_RETURN(FileDescriptor file, OpenForReading(path));
  LIME_ASSIGN_OR_RETURN(const Bytes now, FileBytes(file, path));
  if (now != bytes) {
    return absl::DataLossError(absl::StrCat(path, ": has ", now, " bytes, but had ", bytes, " when its header was read; load it again"));
  }
  void* data = bytes == 0 ? nullptr : ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, path, absl::StrCat("map ", FormatBytes(bytes)));
  return std::shared_ptr<const MappedFile>(new MappedFile(path, std::move(file), static_cast<const std::byte*>(data), bytes));
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
  if (error == 0) return CheckNotTruncated();
  if (error != EINVAL) {  // EINVAL: the kernel is older than 5.14
    LIME_RETURN_IF_ERROR(CheckNotTruncated());
    return absl::UnavailableError(absl::StrCat(path_, ": reading ", bytes, " bytes at offset ", offset,
                                               " failed: ", error == EFAULT ? "the disk gave an error" : std::strerror(error)));
  }
#endif
  return PopulateByReading(offset, bytes);
}

absl::Status MappedFile::PopulateByReading(int64_t offset, Bytes bytes) const {
  static const Bytes page = ::sysconf(_SC_PAGESIZE);
  std::vector<std::byte> scratch(static_cast<size_t>(std::min(bytes, kTouchBytes)));
  for (Bytes done = 0; done < bytes;) {
    const int64_t at = offset + done;
    const ssize_t got = ::pread(file_.get(), scratch.data(), static_cast<size_t>(std::min(bytes - done, kTouchBytes)), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, path_, absl::StrCat("read ", bytes - done, " bytes at offset ", at));
    if (got == 0) return CheckNotTruncated();
    // The bytes are cached now: touching them fills the page table.
    for (const volatile std::byte *byte = data_ + at / page * page, *end = data_ + at + got; byte < end; byte += page)
      static_cast<void>(*byte);
    done += got;
  }
  return CheckNotTruncated();
}

absl::Status MappedFile::CheckNotTruncated() const {
  LIME_ASSIGN_OR_RETURN(const Bytes now, FileBytes(file_, path_));
  if (now >= bytes_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, ": was truncated to ", now, " of ", bytes_, " bytes while it was in use; copy it again"));
}

void MappedFile::Release(int64_t offset, Bytes bytes) const {
  const PageRange range = PagesOf(data_, offset, bytes, /*inside=*/true);
  if (range.bytes > 0) ::madvise(range.address, range.bytes, MADV_DONTNEED);
}

}  // namespace lime
