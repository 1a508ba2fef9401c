// Ends a generation at the first of several strings, wherever the pieces of text are cut.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lime {

// Holds back text that may be the beginning of a stop string. Time: linear in the text for each
// stop string (Knuth, Morris, Pratt).
// Owner: one generated sequence.
class StopStrings {
 public:
  // Empty strings are ignored.
  explicit StopStrings(const std::vector<std::string>& stops);

  // Returns text that can be printed now. It ends before the stop string once one is complete.
  // Valid until the next call.
  std::string_view Push(std::string_view text);

  // Returns the text that was held back, if the text ends without a stop string. Then a new text may
  // begin.
  std::string_view Finish();

  bool stopped() const { return stopped_; }

  // The stop string that was found; the longest if several end together. REQUIRES: stopped().
  const std::string& matched() const { return patterns_[matched_].text; }

 private:
  struct Pattern {
    std::string text;
    // border[n]: length of the longest proper prefix of text that is also a suffix of its first n
    // bytes.
    std::vector<size_t> border;
    size_t matched = 0;  // length of the prefix of text that the input ends with
  };

  void Advance(Pattern& pattern, char c) const;
  bool Feed(char c);
  size_t LongestHeld() const;
  std::string_view Release(size_t keep);

  std::vector<Pattern> patterns_;
  bool stopped_ = false;
  size_t matched_ = 0;  // index into patterns_
  std::string held_;
  std::string text_;  // result of the last call
};

}  // namespace lime
