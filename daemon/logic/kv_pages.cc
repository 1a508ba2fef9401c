#include "daemon/logic/kv_pages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/bytes.h"
#include "planner/base/check.h"

namespace lime {

KvPages::KvPages(const Options& options)
    : options_(options),
      held_(static_cast<size_t>(options.num_pages), false),
      free_(options.num_pages),
      pages_(static_cast<size_t>(options.max_sequences * options.num_layers)),
      shared_(static_cast<size_t>(options.max_sequences)),
      evicted_(static_cast<size_t>(options.max_sequences)) {}

int64_t KvPages::PagesFor(int64_t positions, int64_t num_layers) {
  return RoundUp(positions, kPositionsPerPage) / kPositionsPerPage * num_layers;
}

absl::StatusOr<bool> KvPages::Extend(int32_t sequence, int64_t positions) {
  if (options_.num_layers == 0) return false;
  const int64_t wanted = PagesFor(positions, 1), held = static_cast<int64_t>(PagesOf(sequence, 0).size());
  const int64_t needed = std::max<int64_t>(0, wanted - held) * options_.num_layers;
  LIME_RETURN_IF_ERROR(CheckFree(positions, needed));
  for (int64_t page = held; page < wanted; ++page) {
    for (int64_t layer = 0; layer < options_.num_layers; ++layer) PagesOf(sequence, layer).push_back(TakeLowest());
  }
  return needed > 0;
}

absl::Status KvPages::Reserve(int32_t sequence, int64_t positions) {
  if (options_.num_layers > 0 && !PagesOf(sequence, 0).empty())
    return absl::FailedPreconditionError(absl::StrCat("sequence slot ", sequence, " has not been left by the sequence before"));
  if (options_.kept_pages == 0) return Extend(sequence, positions).status();
  if (options_.num_layers == 0) return absl::OkStatus();
  const int64_t pages = PagesFor(positions, 1), kept = std::min(pages, options_.kept_pages);
  LIME_RETURN_IF_ERROR(CheckFree(positions, kept * options_.num_layers + pages - kept));
  for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
    std::vector<int32_t>& ring = PagesOf(sequence, layer);
    for (int64_t page = 0; page < pages; ++page) ring.push_back(page < kept ? TakeLowest() : ring[static_cast<size_t>(page - kept)]);
  }
  for (int64_t page = kept; page < pages; ++page) shared_[static_cast<size_t>(sequence)].push_back(TakeLowest());
  return absl::OkStatus();
}

absl::StatusOr<bool> KvPages::Evict(int32_t sequence, int64_t end) {
  const std::vector<int32_t>& shared = shared_.at(static_cast<size_t>(sequence));
  int64_t& evicted = evicted_[static_cast<size_t>(sequence)];
  const int64_t pages = options_.num_layers == 0 ? 0 : PagesFor(end, 1);
  if (pages > std::ssize(shared))
    return absl::OutOfRangeError(absl::StrCat("positions up to ", end, " of sequence slot ", sequence, " are to be evicted, and it has ",
                                              shared.size(), " pages for them"));
  if (pages < evicted) {
    return absl::OutOfRangeError(absl::StrCat("rows of sequence slot ", sequence, " need KV from position ", end,
                                              " on, and it is evicted up to ", evicted * kPositionsPerPage));
  }
  if (pages == evicted) return false;
  for (int64_t layer = 0; layer < options_.num_layers; ++layer)
    std::copy(shared.begin() + evicted, shared.begin() + pages, PagesOf(sequence, layer).begin() + evicted);
  evicted = pages;
  return true;
}

absl::Status KvPages::CheckFree(int64_t positions, int64_t needed) const {
  if (needed <= free_pages()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("a sequence of ", positions, " positions needs ", needed, " KV pages and ", free_pages(),
                                                   " of ", options_.num_pages,
                                                   " are free; give a larger --context or a shorter prompt and --max-tokens"));
}

// REQUIRES: free_ > 0
int32_t KvPages::TakeLowest() {
  while (held_[lowest_]) ++lowest_;
  held_[lowest_] = true;
  --free_;
  return static_cast<int32_t>(lowest_++);
}

void KvPages::Return(int32_t page) {
  held_[static_cast<size_t>(page)] = false;
  if (page < options_.num_pages) {
    ++free_;
  } else {
    --held_beyond_;
  }
  lowest_ = std::min(lowest_, static_cast<size_t>(page));
}

void KvPages::GiveUp(int32_t sequence, int64_t begin, int64_t end) {
  for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
    for (int64_t at = begin / kPositionsPerPage; at < end / kPositionsPerPage; ++at) {
      int32_t& page = PagesOf(sequence, layer).at(static_cast<size_t>(at));
      LIME_CHECK(page >= 0) << "positions from " << at * kPositionsPerPage << " on are given up twice";
      Return(std::exchange(page, -1));
    }
  }
}

void KvPages::Release(int32_t sequence) {
  for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
    std::vector<int32_t>& pages = PagesOf(sequence, layer);
    for (const int32_t page : pages) {
      if (page >= 0 && held_[static_cast<size_t>(page)]) Return(page);  // a ring names its pages more than once
    }
    pages.clear();
  }
  for (const int32_t page : std::exchange(shared_.at(static_cast<size_t>(sequence)), {})) {
    if (held_[static_cast<size_t>(page)]) Return(page);
  }
  evicted_[static_cast<size_t>(sequence)] = 0;
}

void KvPages::SetNumPages(int64_t num_pages) {
  options_.num_pages = num_pages;
  if (held_.size() < static_cast<size_t>(num_pages)) held_.resize(static_cast<size_t>(num_pages), false);
  const auto end = held_.begin() + num_pages;
  free_ = std::count(held_.begin(), end, false);
  held_beyond_ = std::count(end, held_.end(), true);
}

std::span<const int32_t> KvPages::Pages(int32_t sequence, int64_t layer) const {
  return pages_.at(static_cast<size_t>(sequence * options_.num_layers + layer));
}

}  // namespace lime
