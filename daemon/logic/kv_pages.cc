#include "daemon/logic/kv_pages.h"

#include "absl/strings/str_cat.h"
#include "planner/base/bytes.h"
#include "planner/base/check.h"

namespace lime {

KvPages::KvPages(const Options& options) : options_(options), pages_(options.max_sequences) {
  free_.reserve(options.num_pages);
  for (int64_t page = options.num_pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

int64_t KvPages::PagesFor(int64_t positions, int64_t num_layers) {
  return RoundUp(positions, kPositionsPerPage) / kPositionsPerPage * num_layers;
}

absl::Status KvPages::Reserve(int32_t sequence, int64_t positions) {
  std::vector<int32_t>& pages = pages_.at(sequence);
  LIME_CHECK(pages.empty()) << "sequence slot " << sequence << " already holds pages";
  const int64_t needed = PagesFor(positions, options_.num_layers);
  if (needed > free_pages()) {
    return absl::ResourceExhaustedError(absl::StrCat("a sequence of ", positions, " positions needs ", needed, " KV pages and ",
                                                     free_pages(), " of ", options_.num_pages,
                                                     " are free; give a larger --context or a shorter prompt and --max-tokens"));
  }
  pages.assign(free_.end() - needed, free_.end());
  free_.resize(free_.size() - needed);
  return absl::OkStatus();
}

void KvPages::Release(int32_t sequence) {
  std::vector<int32_t>& pages = pages_.at(sequence);
  free_.insert(free_.end(), pages.begin(), pages.end());
  pages.clear();
}

std::span<const int32_t> KvPages::Pages(int32_t sequence, int64_t layer) const {
  const std::vector<int32_t>& pages = pages_.at(sequence);
  const size_t per_layer = pages.size() / options_.num_layers;
  return std::span<const int32_t>(pages).subspan(layer * per_layer, per_layer);
}

}  // namespace lime
