#include "daemon/weights/huge_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lime {

absl::StatusOr<HugeBuffer> HugeBuffer::Allocate(Bytes bytes) {
  HugeBuffer buffer;
  buffer.bytes_ = RoundUp(bytes, kHugePageBytes);
  buffer.mapping_bytes_ = static_cast<size_t>(buffer.bytes_ + kHugePageBytes);
  void* mapping = ::mmap(nullptr, buffer.mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot reserve ", FormatBytes(bytes), " for weights: ", std::strerror(errno)));
  }
  buffer.mapping_ = mapping;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  buffer.data_ = reinterpret_cast<std::byte*>((address + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
#ifdef MADV_HUGEPAGE
  ::madvise(buffer.data_, static_cast<size_t>(buffer.bytes_), MADV_HUGEPAGE);  // best effort: a kernel without them gives small pages
#endif
  return buffer;
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept {
  *this = std::move(other);
}

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HugeBuffer::~HugeBuffer() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
}

absl::Status HugeBuffer::Prefault() {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(data_, static_cast<size_t>(bytes_), MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  if (errno != EINVAL) return absl::ResourceExhaustedError(absl::StrCat("cannot fill ", FormatBytes(bytes_), ": ", std::strerror(errno)));
#endif
  constexpr Bytes kSmallPage = 4096;
  for (Bytes at = 0; at < bytes_; at += kSmallPage) {
    volatile std::byte* page = data_ + at;
    *page = *page;
  }
  return absl::OkStatus();
}

}  // namespace lime
