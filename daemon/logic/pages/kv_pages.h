// Decides which KV pages belong to which sequence. Pure: ids and counts; the memory is the
// backend's.
//
// A page holds 16 positions of one layer. If KV is planned for the whole length of every sequence,
// a sequence reserves all its pages on admission, so that none is missing while it generates. If
// the pool grows, it reserves more pages as it goes on. If only the newest positions are kept, a
// sequence's pages of a layer are a ring, and evicted positions are in pages that all layers use in
// turn. A layer with a window gives the pages behind it back: the sequence's pages of that layer
// are a ring, in which later positions have the pages of earlier ones (planner/plan/model/kv_window.h).
// Rows of a layer are computed in the order of their positions, so nothing else says when a page is
// given back. The pool shrinks and grows at its end, and the lowest free pages are given first. So
// the last pages become free as sequences end.
//
// Thread: the owner's.   Invariant: a page has at most one owner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/base/bytes.h"
#include "planner/base/check.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr int64_t kPositionsPerPage = 16;

class KvPages {
 public:
  struct Options {
    int64_t num_pages = 0;
    int64_t num_layers = 0;
    int64_t max_sequences = 0;
    int64_t retained_pages = 0;  // of a layer and sequence; 0: all
    // By layer, the most pages of a sequence; INT64_MAX: no limit. Empty: no layer has one.
    std::vector<int64_t> most_pages = {};
  };
  explicit KvPages(const Options& options)
      : options_(options),
        held_(static_cast<size_t>(options.num_pages), false),
        free_(options.num_pages),
        pages_(static_cast<size_t>(options.max_sequences * options.num_layers)),
        shared_(static_cast<size_t>(options.max_sequences)),
        evicted_(static_cast<size_t>(options.max_sequences)) {}

  // Pages that `positions` positions of one sequence need over all layers, if no layer has a limit.
  static int64_t PagesFor(int64_t positions, int64_t num_layers) {
    return RoundUp(positions, kPositionsPerPage) / kPositionsPerPage * num_layers;
  }
  // The same for the layers here.
  int64_t PagesFor(int64_t positions) const {
    int64_t pages = 0;
    for (int64_t layer = 0; layer < options_.num_layers; ++layer) pages += std::min(PagesFor(positions, 1), MostPages(layer));
    return pages;
  }

  int64_t num_pages() const { return options_.num_pages; }
  // Pages that can be given.
  int64_t free_pages() const { return free_; }

  // Gives slot `sequence` the pages that it lacks for `positions` positions in every layer. True if
  // it lacked any. ResourceExhausted, with the numbers, if too few are free; nothing is given then.
  absl::StatusOr<bool> Extend(int32_t sequence, int64_t positions) {
    if (options_.num_layers == 0) return false;
    const int64_t wanted = PagesFor(positions, 1), held = static_cast<int64_t>(PagesOf(sequence, 0).size());
    if (wanted <= held) return false;
    LIME_RETURN_IF_ERROR(CheckFree(positions, PagesFor(positions) - PagesFor(held * kPositionsPerPage)));
    for (int64_t page = held; page < wanted; ++page) {
      for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
        std::vector<int32_t>& pages = PagesOf(sequence, layer);
        pages.push_back(page < MostPages(layer) ? AllocateLowest() : pages[static_cast<size_t>(page - MostPages(layer))]);
      }
    }
    return true;
  }

  // As Extend, for a slot without pages, else FailedPrecondition. If not all pages are kept, the
  // slot gets all that it will need.
  absl::Status Reserve(int32_t sequence, int64_t positions) {
    if (options_.num_layers > 0 && !PagesOf(sequence, 0).empty())
      return absl::FailedPreconditionError(absl::StrCat("sequence slot ", sequence, " is still in use by the sequence before"));
    if (options_.retained_pages == 0) return Extend(sequence, positions).status();
    if (options_.num_layers == 0) return absl::OkStatus();
    const int64_t pages = PagesFor(positions, 1), retained = std::min(pages, options_.retained_pages);
    LIME_RETURN_IF_ERROR(CheckFree(positions, retained * options_.num_layers + pages - retained));
    for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
      std::vector<int32_t>& ring = PagesOf(sequence, layer);
      for (int64_t page = 0; page < pages; ++page)
        ring.push_back(page < retained ? AllocateLowest() : ring[static_cast<size_t>(page - retained)]);
    }
    for (int64_t page = retained; page < pages; ++page) shared_[static_cast<size_t>(sequence)].push_back(AllocateLowest());
    return absl::OkStatus();
  }

  // The slot has `positions` positions from now on. All layers have the positions before the
  // retained ones in the same pages. True if more positions are evicted than before. OutOfRange if
  // the slot has no pages for that, or if more is evicted already.  REQUIRES: not all pages are
  // kept
  absl::StatusOr<bool> Evict(int32_t sequence, int64_t positions) {
    const std::vector<int32_t>& shared = shared_.at(static_cast<size_t>(sequence));
    int64_t& evicted = evicted_[static_cast<size_t>(sequence)];
    const int64_t pages = options_.num_layers == 0 ? 0 : std::max<int64_t>(0, PagesFor(positions, 1) - options_.retained_pages);
    const int64_t end = pages * kPositionsPerPage;
    if (pages > std::ssize(shared))
      return absl::OutOfRangeError(absl::StrCat("positions up to ", end, " of sequence slot ", sequence, " are to be evicted, but it has ",
                                                shared.size(), " pages for them"));
    if (pages < evicted) {
      return absl::OutOfRangeError(absl::StrCat("rows of sequence slot ", sequence, " need KV from position ", end,
                                                " on, but KV is evicted up to position ", evicted * kPositionsPerPage));
    }
    if (pages == evicted) return false;
    for (int64_t layer = 0; layer < options_.num_layers; ++layer)
      std::copy(shared.begin() + evicted, shared.begin() + pages, PagesOf(sequence, layer).begin() + evicted);
    evicted = pages;
    return true;
  }

  // Frees the pages of positions [begin, end) of the slot in all layers; both are multiples of 16.
  // Pages() then has -1 for them.
  // REQUIRES: it holds them, and no layer has a limit
  void ReleaseRange(int32_t sequence, int64_t begin, int64_t end) {
    for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
      for (int64_t at = begin / kPositionsPerPage; at < end / kPositionsPerPage; ++at) {
        int32_t& page = PagesOf(sequence, layer).at(static_cast<size_t>(at));
        LIME_CHECK(page >= 0) << "positions from " << at * kPositionsPerPage << " on are released twice";
        Return(std::exchange(page, -1));
      }
    }
  }

  // Frees the pages of the slot from position `positions` on, a multiple of 16.
  // REQUIRES: all pages are kept, or the slot has none
  void Cut(int32_t sequence, int64_t positions) {
    for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
      std::vector<int32_t>& pages = PagesOf(sequence, layer);
      for (; std::ssize(pages) > positions / kPositionsPerPage; pages.pop_back()) {
        // Those beyond the limit name pages before them.
        if (pages.back() >= 0 && std::ssize(pages) <= MostPages(layer)) Return(pages.back());
      }
    }
  }

  // Frees all pages of the slot.
  void Release(int32_t sequence) {
    for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
      std::vector<int32_t>& pages = PagesOf(sequence, layer);
      for (const int32_t page : pages) {
        // A ring names its pages more than once.
        if (page >= 0 && held_[static_cast<size_t>(page)]) Return(page);
      }
      pages.clear();
    }
    for (const int32_t page : std::exchange(shared_.at(static_cast<size_t>(sequence)), {})) {
      if (held_[static_cast<size_t>(page)]) Return(page);
    }
    evicted_[static_cast<size_t>(sequence)] = 0;
  }

  // From now on only pages below `num_pages` are given. Higher pages that are held stay held.
  void SetNumPages(int64_t num_pages) {
    options_.num_pages = num_pages;
    if (held_.size() < static_cast<size_t>(num_pages)) held_.resize(static_cast<size_t>(num_pages), false);
    const auto end = held_.begin() + num_pages;
    free_ = std::count(held_.begin(), end, false);
    held_beyond_ = std::count(end, held_.end(), true);
  }

  // True if no page is held that may not be given any more.
  bool Fits() const { return held_beyond_ == 0; }

  // Pages of one layer of a sequence, by position / 16; -1: released. A page that is there more
  // than once has the last of these positions that was written.
  std::span<const int32_t> Pages(int32_t sequence, int64_t layer) const {
    return pages_.at(static_cast<size_t>(sequence * options_.num_layers + layer));
  }

  // The most pages of a sequence in the layer.
  int64_t MostPages(int64_t layer) const {
    return options_.most_pages.empty() ? std::numeric_limits<int64_t>::max() : options_.most_pages[static_cast<size_t>(layer)];
  }

 private:
  std::vector<int32_t>& PagesOf(int32_t sequence, int64_t layer) {
    return pages_.at(static_cast<size_t>(sequence * options_.num_layers + layer));
  }
  absl::Status CheckFree(int64_t positions, int64_t needed) const {
    if (needed <= free_pages()) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("a sequence of ", positions, " positions needs ", needed, " KV pages, but ",
                                                     free_pages(), " of ", options_.num_pages,
                                                     " are free; give a larger --context, or a shorter prompt and a smaller --max-tokens"));
  }

  // REQUIRES: free_ > 0
  int32_t AllocateLowest() {
    while (held_[lowest_]) ++lowest_;
    held_[lowest_] = true;
    --free_;
    return static_cast<int32_t>(lowest_++);
  }

  void Return(int32_t page) {
    held_[static_cast<size_t>(page)] = false;
    if (page < options_.num_pages) {
      ++free_;
    } else {
      --held_beyond_;
    }
    lowest_ = std::min(lowest_, static_cast<size_t>(page));
  }

  Options options_;
  std::vector<bool> held_;  // by page
  int64_t free_ = 0;        // below num_pages
  int64_t held_beyond_ = 0;
  size_t lowest_ = 0;                        // no page before it is free
  std::vector<std::vector<int32_t>> pages_;  // [sequence][layer]
  // By sequence, if not all pages are kept.
  std::vector<std::vector<int32_t>> shared_;  // for evicted positions, from the first on
  std::vector<int64_t> evicted_;              // pages
};

}  // namespace lime
