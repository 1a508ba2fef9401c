#include "planner/base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr size_t kMaxWord = 64;     // a longer word is not a typing error
constexpr size_t kLeastPrefix = 3;  // the shortest prefix that identifies a word

// Typing errors between two words: Damerau's distance without edits inside an exchanged pair.
size_t Slips(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> slips(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) slips[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) slips[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      slips[i][j] = std::min({slips[i - 1][j] + 1, slips[i][j - 1] + 1, slips[i - 1][j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0)});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) slips[i][j] = std::min(slips[i][j], slips[i - 2][j - 2] + 1);
    }
  }
  return slips[a.size()][b.size()];
}

}  // namespace

std::string Nearest(std::string_view word, std::span<const std::string> candidates) {
  if (word.empty() || word.size() > kMaxWord) return "";
  std::string best;
  size_t fewest = 0;
  for (const std::string& candidate : candidates) {
    const size_t allowed = std::max<size_t>(1, std::min(word.size(), candidate.size()) / 3);
    const bool begins = word.size() >= kLeastPrefix && std::string_view(candidate).starts_with(word);
    const size_t slips = begins ? 1 : Slips(word, candidate);
    if (slips > allowed || (!best.empty() && slips >= fewest)) continue;
    best = candidate;
    fewest = slips;
  }
  return best;
}

std::string DidYouMean(std::string_view word, std::span<const std::string> candidates, std::string_view prefix) {
  const std::string nearest = Nearest(word, candidates);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", Text(prefix), nearest, "?");
}

}  // namespace lime
