#include "kernels/torch/kv_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

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

}  // namespace

KvPool::KvPool(const ModelSpec& spec, const BackendOptions& options)
    : positions_(options.max_sequences, options.num_kv_pages == 0 ? options.context : 0), num_pages_(options.num_kv_pages) {
  const ModelConfig& config = spec.config;
  const int64_t page_bytes = cpu::KvPageBytes(spec.working_dtype, config.num_kv_heads, config.head_dim);
  const int64_t table_cols = RoundUp(options.context, cpu::kPagePositions) / cpu::kPagePositions;
  const auto make = options.grow_kv ? MakeGrowing : EmptyPrefaulted;
  const at::Tensor pages = make({options.num_kv_pages, page_bytes / ElementBytes(spec.working_dtype)}, ToTorch(spec.working_dtype));
  bytes_ = static_cast<Bytes>(pages.nbytes());
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    layers_.push_back({.pages = pages,
                       .page_table = at::zeros({options.max_sequences, table_cols}, at::kInt),
                       .kv_heads = config.num_kv_heads,
                       .head_dim = config.head_dim});
  }
}

void KvPool::SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) {
  const at::Tensor& table = layers_.at(layer).page_table;
  LIME_CHECK_LE(static_cast<int64_t>(pages.size()), table.size(1));
  for (const int32_t page : pages) LIME_CHECK(page >= 0 && page < num_pages_) << page;
  std::ranges::copy(pages, table.data_ptr<int32_t>() + sequence * table.size(1));
  positions_.at(sequence) = static_cast<int64_t>(pages.size()) * cpu::kPagePositions;
}

}  // namespace lime
