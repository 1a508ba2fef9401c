#include "kernels/cpu_backend/kv_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "kernels/cpu_backend/buffer.h"
#include "planner/base/check.h"

namespace lime::cpu {
namespace {

constexpr Bytes kSystemPage = 4 * kKiB;

// Zeroed memory; the system allocates a page when it is first written.
std::shared_ptr<std::byte> MakeGrowing(Bytes bytes) {
  const size_t size = static_cast<size_t>(std::max(bytes, kSystemPage));
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), [size](std::byte* data) { munmap(data, size); }};
}

// Makes the memory present as zeros, in whole pages of the system.
absl::Status Populate(std::byte* data, Bytes bytes) {
  if (bytes <= 0) return absl::OkStatus();
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  if (errno != EINVAL) return absl::ResourceExhaustedError(absl::StrCat("cannot grow the KV pool by ", bytes, " bytes: ", strerror(errno)));
#endif
  for (Bytes at = 0; at < bytes; at += kSystemPage) *static_cast<volatile std::byte*>(data + at) = std::byte{0};
  return absl::OkStatus();
}

}  // namespace

KvPool::KvPool(const ModelSpec& spec, const BackendOptions& options)
    : dtype_(spec.working_dtype),
      config_(spec.config),
      sequences_(options.max_sequences),
      num_pages_(options.num_kv_pages),
      table_cols_(RoundUp(options.context, kPagePositions) / kPagePositions),
      page_bytes_(spec.KvPageBytes()),
      resizable_(options.present_kv_pages >= 0 && options.num_kv_pages > 0),
      tables_(static_cast<size_t>(spec.NumKvLayers() * sequences_ * table_cols_)),
      positions_(static_cast<size_t>(sequences_), options.num_kv_pages == 0 ? options.context : 0) {
  int32_t place = 0;
  for (const LayerConfig& layer : config_.layers) places_.push_back(layer.has_kv() ? place++ : -1);
  const Bytes bytes = num_pages_ * page_bytes_;
  memory_ = options.grow_kv || resizable_ ? MakeGrowing(bytes) : std::shared_ptr<std::byte>(MakePrefaulted(bytes).release(), FreeMemory());
  if (!resizable_) bytes_ = bytes;
}

absl::Status KvPool::Resize(int64_t pages) {
  if (num_pages_ == 0 && pages == 0) return absl::OkStatus();
  LIME_CHECK(resizable_ && pages >= 0 && pages <= num_pages_) << pages << " of " << num_pages_;
  const Bytes whole = RoundUp(num_pages_ * page_bytes_, kSystemPage);
  const Bytes before = std::min(whole, RoundUp(bytes_.load(), kSystemPage)),
              after = std::min(whole, RoundUp(pages * page_bytes_, kSystemPage));
  if (after < before) madvise(memory_.get() + after, static_cast<size_t>(before - after), MADV_DONTNEED);
  if (after > before) LIME_RETURN_IF_ERROR(Populate(memory_.get() + before, after - before));
  bytes_ = pages * page_bytes_;
  return absl::OkStatus();
}

void KvPool::SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) {
  LIME_CHECK_LE(static_cast<int64_t>(pages.size()), table_cols_);
  for (const int32_t page : pages) LIME_CHECK(page >= -1 && page < num_pages_) << page;
  positions_.at(static_cast<size_t>(sequence)) = static_cast<int64_t>(pages.size()) * kPagePositions;
  std::ranges::copy(pages, tables_.begin() + TableOf(layer) + sequence * table_cols_);
}

int64_t KvPool::TableOf(int64_t layer) const {
  const int32_t place = places_.at(static_cast<size_t>(layer));
  LIME_CHECK_GE(place, 0) << "layer " << layer << " has no KV";
  return place * sequences_ * table_cols_;
}

KvView KvPool::layer(int64_t layer) const {
  return {.base = memory_.get(),
          .page_bytes = page_bytes_,
          .dtype = dtype_,
          .kv_heads = config_.layer(layer).num_kv_heads,
          .head_dim = config_.layer(layer).head_dim,
          .page_table = tables_.data() + TableOf(layer),
          .table_stride = table_cols_,
          .latent_dim = config_.latent_attention ? config_.latent_attention->rank : 0};
}

}  // namespace lime::cpu
