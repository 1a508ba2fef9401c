#include "daemon/weights/huge_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

constexpr Bytes kSmallPage = 4 * kKiB;
constexpr Bytes kPrefaultBytes = 16 * kMiB;  // at a time: the rest of the process may change its memory in between

absl::Status PrefaultRange(std::byte* data, Bytes bytes) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(data, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  if (errno != EINVAL) return absl::ResourceExhaustedError(absl::StrCat("cannot fill ", FormatBytes(bytes), ": ", std::strerror(errno)));
#endif
  for (Bytes at = 0; at < bytes; at += kSmallPage) {
    volatile std::byte* page = data + at;
    *page = *page;
  }
  return absl::OkStatus();
}

}  // namespace

// The end is on small pages, so that a buffer holds no more memory than was asked for.
absl::StatusOr<HugeBuffer> HugeBuffer::Allocate(Bytes bytes) {
  HugeBuffer buffer;
  const Bytes wanted = RoundUp(std::max<Bytes>(bytes, 1), kSmallPage);
  const auto reserved = static_cast<size_t>(wanted + kHugePageBytes);
  void* mapping = ::mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot reserve ", FormatBytes(bytes), " for weights: ", std::strerror(errno)));
  }
  auto* const first = static_cast<std::byte*>(mapping);
  const size_t before = (kHugePageBytes - reinterpret_cast<uintptr_t>(first) % kHugePageBytes) % kHugePageBytes;
  buffer.data_ = first + before;
  buffer.bytes_ = wanted;
  if (before > 0) ::munmap(first, before);
  if (before < kHugePageBytes) ::munmap(buffer.data_ + wanted, kHugePageBytes - before);
#ifdef MADV_HUGEPAGE
  const Bytes whole = wanted / kHugePageBytes * kHugePageBytes;
  if (whole > 0) ::madvise(buffer.data_, static_cast<size_t>(whole), MADV_HUGEPAGE);  // best effort: some kernels have small pages only
#endif
  return buffer;
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept {
  *this = std::move(other);
}

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HugeBuffer::~HugeBuffer() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

absl::Status HugeBuffer::Prefault(const std::atomic<bool>* stop) {
  for (Bytes begin = 0; begin < bytes_; begin += kPrefaultBytes) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) return absl::CancelledError("the memory is not needed any more");
    LIME_RETURN_IF_ERROR(PrefaultRange(data_ + begin, std::min(kPrefaultBytes, bytes_ - begin)));
  }
  return absl::OkStatus();
}

}  // namespace lime
