// Memory of the KV pages and the tables that say where each sequence's pages lie. Which page goes to whom is decided elsewhere
// (daemon/logic/kv_pages.h).
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/torch/ops.h"
#include "planner/plan/model_spec.h"

namespace lime {

class KvPool {
 public:
  // Allocates options.num_kv_pages pages, and pre-faults them unless options.grow_kv, or those of them that are to be present.
  KvPool(const ModelSpec& spec, const BackendOptions& options);

  // Backend::ResizeKv.
  absl::Status Resize(int64_t pages);

  void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages);

  std::byte* page(int32_t page) { return static_cast<std::byte*>(layers_.front().pages.data_ptr()) + page * page_bytes_; }
  // The memory of all pages, which outlives the pool.
  std::shared_ptr<const std::byte> Take() const {
    const auto pages = std::make_shared<at::Tensor>(layers_.front().pages);
    return {pages, static_cast<const std::byte*>(pages->data_ptr())};
  }
  const ops::KvLayer& layer(int64_t layer) const { return layers_[layer]; }
  // Positions that the sequence has pages for; the whole context where no attention is computed, and so no page is needed.
  int64_t positions(int32_t sequence) const { return positions_[sequence]; }
  Bytes bytes() const { return bytes_; }

 private:
  std::vector<ops::KvLayer> layers_;
  std::vector<int64_t> positions_;  // by sequence slot
  int64_t num_pages_ = 0;
  Bytes page_bytes_ = 0;
  bool resizable_ = false;
  std::atomic<Bytes> bytes_ = 0;  // present
};

}  // namespace lime
