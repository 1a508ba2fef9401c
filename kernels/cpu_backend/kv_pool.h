// The memory of the KV pages, and the tables with each sequence's pages. daemon/logic/pages/kv_pages.h
// decides which sequence gets which page.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/attention.h"
#include "planner/plan/model/model_spec.h"

namespace lime::cpu {

class KvPool {
 public:
  // Allocates options.num_kv_pages pages, and pre-faults them unless options.grow_kv. A resizable
  // pool begins with no page present. Throws std::bad_alloc. REQUIRES: `spec` outlives the pool.
  KvPool(const ModelSpec& spec, const BackendOptions& options);

  // Backend::ResizeKv.
  absl::Status Resize(int64_t pages);

  void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages);

  std::byte* page(int32_t page) { return memory_.get() + page * page_bytes_; }
  // The memory of all pages. It may outlive the pool.
  std::shared_ptr<const std::byte> Share() const { return memory_; }
  // The pages of one layer with KV, in the form that the operators use.
  KvView layer(int64_t layer) const;
  // By sequence slot, how many positions have pages. The whole context if this backend computes no
  // attention, and so needs no pages.
  std::span<const int64_t> positions() const { return positions_; }
  Bytes bytes() const { return bytes_; }

 private:
  // First element of the layer's table.
  int64_t TableOf(int64_t layer) const;

  const DType dtype_;
  const ModelConfig& config_;
  const int64_t sequences_, num_pages_;
  const int64_t table_cols_;  // pages of one sequence in one layer
  const Bytes page_bytes_;
  const bool resizable_;
  std::shared_ptr<std::byte> memory_;
  std::vector<int32_t> places_;     // by layer, its index among the layers with KV; -1: it has none
  std::vector<int32_t> tables_;     // [layers with KV, sequence slots, table_cols]
  std::vector<int64_t> positions_;  // by sequence slot
  std::atomic<Bytes> bytes_ = 0;    // bytes that are present
};

}  // namespace lime::cpu
