// Which KV pages belong to which sequence. Pure: ids and counts; the memory is the backend's.
//
// A page holds 16 positions of one layer. Where KV is planned for the whole length of every sequence, a sequence reserves all its pages on
// admission, so that nothing can run out while it generates; where the pool grows, it reserves more as it goes on. Where only the newest
// positions are kept (planner/plan/kv_eviction.h), a layer's pages of a sequence are a ring, and pages that all layers use in turn take the
// place of those that are evicted.
// The pages that are there are the first ones, and the lowest free ones are given first: so the last ones come free as sequences end.
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
    int64_t kept_pages = 0;  // of a layer and sequence; 0: all
  };
  explicit KvPages(const Options& options);

  // Pages that `positions` positions of one sequence need over all layers.
  static int64_t PagesFor(int64_t positions, int64_t num_layers);

  int64_t num_pages() const { return options_.num_pages; }
  // To be given: at most num_pages less those that are held.
  int64_t free_pages() const { return free_; }

  // Gives sequence slot `sequence` what it lacks of the pages for `positions` positions in every layer; true where it lacked any.
  // ResourceExhausted, with the numbers, and nothing given, when too few are free.
  absl::StatusOr<bool> Extend(int32_t sequence, int64_t positions);
  // The same for a slot that holds none, else FailedPrecondition; where not all are kept, what it ever needs.
  absl::Status Reserve(int32_t sequence, int64_t positions);

  // From now on all layers have positions [0, end) of the slot, a multiple of 16, in the same pages; true where they had not. OutOfRange
  // where it has no pages for that, or where more than that is evicted already.
  absl::StatusOr<bool> Evict(int32_t sequence, int64_t end);

  // Takes the pages of positions [begin, end) of the slot back, in all layers; multiples of 16. Pages() then has -1 for them.
  // REQUIRES: it holds them
  void GiveUp(int32_t sequence, int64_t begin, int64_t end);

  // Takes all pages of the slot back.
  void Release(int32_t sequence);

  // From now on pages below `num_pages` are given. Those from there on that somebody holds stay held.
  void SetNumPages(int64_t num_pages);
  // Nobody holds a page that is not to be given any more.
  bool Fits() const { return held_beyond_ == 0; }

  // Pages of one layer of a sequence, by position / 16; -1: given up.
  std::span<const int32_t> Pages(int32_t sequence, int64_t layer) const;

 private:
  std::vector<int32_t>& PagesOf(int32_t sequence, int64_t layer) {
    return pages_.at(static_cast<size_t>(sequence * options_.num_layers + layer));
  }
  absl::Status CheckFree(int64_t positions, int64_t needed) const;
  int32_t TakeLowest();
  void Return(int32_t page);

  Options options_;
  std::vector<bool> held_;  // by page
  int64_t free_ = 0;        // below num_pages
  int64_t held_beyond_ = 0;
  size_t lowest_ = 0;                        // no page before it is free
  std::vector<std::vector<int32_t>> pages_;  // [sequence][layer]
  // By sequence, where not all are kept.
  std::vector<std::vector<int32_t>> shared_;  // for evicted positions, from the first on
  std::vector<int64_t> evicted_;              // pages
};

}  // namespace lime
