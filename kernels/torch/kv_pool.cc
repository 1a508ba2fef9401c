#include "kernels/torch/kv_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/attention.h"
#include "kernels/torch/workspace.h"
#include "planner/base/check.h"

namespace lime {
namespace {

// Zeros of which the system provides a page when it is first written.
at::Tensor MakeGrowing(at::IntArrayRef sizes, at::ScalarType dtype) {
  const size_t bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return at::from_blob(
      memory, sizes, [bytes](void* data) { munmap(data, bytes); }, at::dtype(dtype));
}

constexpr Bytes kSystemPage = 4 * kKiB;

// Present as zeros, in whole pages of the system.
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
    : positions_(options.max_sequences, options.num_kv_pages == 0 ? options.context : 0),
      num_pages_(options.num_kv_pages),
      resizable_(options.present_kv_pages >= 0 && options.num_kv_pages > 0) {
  const ModelConfig& config = spec.config;
  const int64_t page_bytes = cpu::KvPageBytes(spec.working_dtype, config.num_kv_heads, config.head_dim);
  const int64_t table_cols = RoundUp(options.context, cpu::kPagePositions) / cpu::kPagePositions;
  const auto make = options.grow_kv || resizable_ ? MakeGrowing : EmptyPrefaulted;
  const at::Tensor pages = make({options.num_kv_pages, page_bytes / ElementBytes(spec.working_dtype)}, ToTorch(spec.working_dtype));
  page_bytes_ = page_bytes;
  bytes_ = resizable_ ? 0 : static_cast<Bytes>(pages.nbytes());
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    layers_.push_back({.pages = pages,
                       .page_table = at::zeros({options.max_sequences, table_cols}, at::kInt),
                       .kv_heads = config.num_kv_heads,
                       .head_dim = config.head_dim});
  }
  if (!resizable_) return;
  const absl::Status present = Resize(options.present_kv_pages);
  if (!present.ok()) throw std::runtime_error(std::string(present.message()));
}

absl::Status KvPool::Resize(int64_t pages) {
  LIME_CHECK(resizable_ && pages >= 0 && pages <= num_pages_) << pages << " of " << num_pages_;
  std::byte* const data = static_cast<std::byte*>(layers_.front().pages.data_ptr());
  const Bytes whole = RoundUp(static_cast<Bytes>(layers_.front().pages.nbytes()), kSystemPage);
  const Bytes before = std::min(whole, RoundUp(bytes_.load(), kSystemPage)),
              after = std::min(whole, RoundUp(pages * page_bytes_, kSystemPage));
  if (after < before) madvise(data + after, static_cast<size_t>(before - after), MADV_DONTNEED);
  if (after > before) LIME_RETURN_IF_ERROR(Populate(data + before, after - before));
  bytes_ = pages * page_bytes_;
  return absl::OkStatus();
}

void KvPool::SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) {
  const at::Tensor& table = layers_.at(layer).page_table;
  LIME_CHECK_LE(static_cast<int64_t>(pages.size()), table.size(1));
  for (const int32_t page : pages) LIME_CHECK(page >= -1 && page < num_pages_) << page;
  std::ranges::copy(pages, table.data_ptr<int32_t>() + sequence * table.size(1));
  positions_.at(sequence) = static_cast<int64_t>(pages.size()) * cpu::kPagePositions;
}

}  // namespace lime
