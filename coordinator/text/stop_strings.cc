#include "coordinator/text/stop_strings.h"

#include <algorithm>

namespace lime {
namespace {

// border[n] for n = 0 ... text.size(); border[0] is not used.
std::vector<size_t> Borders(std::string_view text) {
  std::vector<size_t> border(text.size() + 1, 0);
  for (size_t n = 2, length = 0; n <= text.size(); ++n) {
    while (length > 0 && text[length] != text[n - 1]) length = border[length];
    if (text[length] == text[n - 1]) ++length;
    border[n] = length;
  }
  return border;
}

}  // namespace

StopStrings::StopStrings(const std::vector<std::string>& stops) {
  // For text passed to Push, so that nothing grows while tokens arrive.
  constexpr size_t kReservedBytes = 1024;
  size_t longest = 0;
  for (const std::string& stop : stops) {
    if (!stop.empty()) patterns_.push_back({stop, Borders(stop)});
    longest = std::max(longest, stop.size());
  }
  held_.reserve(longest + kReservedBytes);
  text_.reserve(longest + kReservedBytes);
}

void StopStrings::Advance(Pattern& pattern, char c) const {
  while (pattern.matched > 0 && pattern.text[pattern.matched] != c) pattern.matched = pattern.border[pattern.matched];
  if (pattern.text[pattern.matched] == c) ++pattern.matched;
}

// Returns whether `c` completes a stop string.
bool StopStrings::Feed(char c) {
  held_.push_back(c);
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& pattern = patterns_[i];
    Advance(pattern, c);
    if (pattern.matched < pattern.text.size()) continue;
    if (!stopped_ || pattern.text.size() > patterns_[matched_].text.size()) matched_ = i;
    stopped_ = true;
  }
  return stopped_;
}

size_t StopStrings::LongestHeld() const {
  size_t longest = 0;
  for (const Pattern& pattern : patterns_) longest = std::max(longest, pattern.matched);
  return longest;
}

std::string_view StopStrings::Release(size_t keep) {
  text_.assign(held_, 0, held_.size() - keep);
  held_.erase(0, text_.size());
  return text_;
}

std::string_view StopStrings::Push(std::string_view text) {
  if (stopped_) return {};
  for (const char c : text) {
    if (Feed(c)) return Release(matched().size());
  }
  return Release(LongestHeld());
}

std::string_view StopStrings::Finish() {
  if (stopped_) return {};
  for (Pattern& pattern : patterns_) pattern.matched = 0;
  return Release(0);
}

}  // namespace lime
