#include "daemon/machine/huge_buffer.h"

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
// Per call, so that the rest of the process can change its memory mappings in between.
constexpr Bytes kPrefaultBytes = 16 * kMiB;

// Makes pages present without changing their content, so other threads may be filling them. Returns
// 0 or an errno (EINVAL: the system does not support it).
int Populate([[maybe_unused]] std::byte* data, [[maybe_unused]] Bytes bytes) {
#ifdef MADV_POPULATE_WRITE
  return ::madvise(data, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0 ? 0 : errno;
#else
  return EINVAL;
#endif
}

absl::Status PrefaultRange(std::byte* data, Bytes bytes) {
  const int error = Populate(data, bytes);
  if (error == 0) return absl::OkStatus();
  if (error != EINVAL) return absl::ResourceExhaustedError(absl::StrCat("cannot fill ", FormatBytes(bytes), ": ", std::strerror(error)));
  for (Bytes at = 0; at < bytes; at += kSmallPage) {
    volatile std::byte* page = data + at;
    *page = *page;
  }
  return absl::OkStatus();
}

}  // namespace

// The last part is on small pages, so that a buffer takes no more memory than was asked for.
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
  // Best effort: some kernels have small pages only.
  if (whole > 0) ::madvise(buffer.data_, static_cast<size_t>(whole), MADV_HUGEPAGE);
#endif
  return buffer;
}

absl::StatusOr<HugeBuffer> HugeBuffer::AllocatePresent(Bytes bytes) {
  LIME_ASSIGN_OR_RETURN(HugeBuffer buffer, Allocate(bytes));
  LIME_RETURN_IF_ERROR(buffer.Prefault());
  return buffer;
}

void ReturnPages(const std::byte* data, Bytes bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data), page = static_cast<uintptr_t>(kSmallPage);
  const uintptr_t first = (begin + page - 1) / page * page, last = (begin + static_cast<uintptr_t>(bytes)) / page * page;
  if (first >= last) return;
  std::byte* const pages = const_cast<std::byte*>(data) + (first - begin);
#ifdef MADV_NOHUGEPAGE
  // Otherwise the kernel may fill the gap with zeros and join the pages again.
  ::madvise(pages, last - first, MADV_NOHUGEPAGE);
#endif
  ::madvise(pages, last - first, MADV_DONTNEED);
}

absl::Status BringPagesBack(std::byte* data, Bytes bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data), page = static_cast<uintptr_t>(kSmallPage);
  const uintptr_t first = begin / page * page, last = (begin + static_cast<uintptr_t>(bytes) + page - 1) / page * page;
  std::byte* const pages = data - (begin - first);
#ifdef MADV_HUGEPAGE
  ::madvise(pages, last - first, MADV_HUGEPAGE);
#endif
  const int error = Populate(pages, static_cast<Bytes>(last - first));
  if (error == 0 || error == EINVAL) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("cannot bring ", FormatBytes(bytes), " back: ", std::strerror(error)));
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

Prefaulting::Prefaulting(HugeBuffer& buffer, int threads, std::function<void()> present) : buffer_(buffer), present_(std::move(present)) {
  const auto steps = static_cast<int>(std::min<Bytes>((buffer.bytes() + kPrefaultBytes - 1) / kPrefaultBytes, threads));
  for (int i = 0; i < steps; ++i) threads_.emplace_back([this] { Run(); });
}

Prefaulting::~Prefaulting() {
  next_ = buffer_.bytes();
  for (std::thread& thread : threads_) thread.join();
}

void Prefaulting::Run() {
  for (Bytes begin = next_.fetch_add(kPrefaultBytes); begin < buffer_.bytes(); begin = next_.fetch_add(kPrefaultBytes)) {
    const Bytes bytes = std::min(kPrefaultBytes, buffer_.bytes() - begin);
    if (Populate(buffer_.data() + begin, bytes) != 0) return;
    if (done_.fetch_add(bytes) + bytes == buffer_.bytes() && present_) present_();
  }
}

}  // namespace lime
