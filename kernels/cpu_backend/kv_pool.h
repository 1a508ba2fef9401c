// Memory of the KV pages and the tables that say where each sequence's pages lie. Which page goes to whom is decided elsewhere
// (daemon/logic/kv_pages.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/attention.h"
#include "planner/plan/model_spec.h"

namespace lime::cpu {

class KvPool {
 public:
  // Allocates options.num_kv_pages pages, and pre-faults them unless options.grow_kv. A pool that can be resized begins with no page
  // present.  Throws std::bad_alloc.
  KvPool(const ModelSpec& spec, const BackendOptions& options);

  // Backend::ResizeKv.
  absl::Status Resize(int64_t pages);

  void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages);

  std::byte* page(int32_t page) { return memory_.get() + page * page_bytes_; }
  // The memory of all pages, which outlives the pool.
  std::shared_ptr<const std::byte> Take() const { return memory_; }
  // The pages of one layer, as the operators reach them.
  KvView layer(int64_t layer) const;
  // By sequence slot, the positions that it has pages for; the whole context where no attention is computed, and so no page is needed.
  std::span<const int64_t> positions() const { return positions_; }
  Bytes bytes() const { return bytes_; }

 private:
  const DType dtype_;
  const int64_t kv_heads_, head_dim_;
  const int64_t sequences_, num_pages_;
  const int64_t table_cols_;  // pages of one sequence in one layer
  const Bytes page_bytes_;
  const bool resizable_;
  std::shared_ptr<std::byte> memory_;
  std::vector<int32_t> tables_;     // [layers, sequence slots, table_cols]
  std::vector<int64_t> positions_;  // by sequence slot
  std::atomic<Bytes> bytes_ = 0;    // present
};

}  // namespace lime::cpu
