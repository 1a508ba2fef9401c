// Which KV pages belong to which sequence. Pure: ids and counts; the memory is the backend's.
//
// A page holds 16 positions of one layer. A sequence reserves all pages of its planned length on admission, so that nothing can run out
// while it generates.
//
// Thread: the owner's.   Invariant: a page has at most one owner.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/status.h"

namespace lime {

inline constexpr int64_t kPositionsPerPage = 16;

class KvPages {
 public:
  struct Options {
    int64_t num_pages = 0;
    int64_t num_layers = 0;
    int64_t max_sequences = 0;
  };
  explicit KvPages(const Options& options);

  // Pages that `positions` positions of one sequence need over all layers.
  static int64_t PagesFor(int64_t positions, int64_t num_layers);

  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }

  // Gives sequence slot `sequence` the pages of `positions` positions in every layer. ResourceExhausted, with the numbers, when too few are
  // free. REQUIRES: the slot holds none.
  absl::Status Reserve(int32_t sequence, int64_t positions);

  // Takes all pages of the slot back.
  void Release(int32_t sequence);

  // Pages of one layer of a sequence, by position / 16.
  std::span<const int32_t> Pages(int32_t sequence, int64_t layer) const;

 private:
  Options options_;
  std::vector<int32_t> free_;                // taken from the back: lowest ids first
  std::vector<std::vector<int32_t>> pages_;  // [sequence]: layer-major
};

}  // namespace lime
