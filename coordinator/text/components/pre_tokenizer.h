// The "pre_tokenizer" of tokenizer.json: splits a normalised text into words. The model encodes
// each word separately.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "coordinator/text/components/json_access.h"
#include "coordinator/text/unicode/regex.h"

namespace lime {

// A text and the words in it, in order. Steps split the words and may change the text.
struct Words {
  struct Word {
    TextRange range;  // bytes of `text`
    // Bytes at the beginning that come from the first character of the whole input.
    size_t start_bytes = 0;
  };
  std::string text;
  std::vector<Word> words;

  std::string_view Text(const Word& word) const {
    return std::string_view(text).substr(word.range.begin, word.range.end - word.range.begin);
  }
};

using PreTokenizeStep = std::function<absl::Status(Words& words)>;

// The steps in order, with sequences flattened. Null gives no steps.
absl::StatusOr<std::vector<PreTokenizeStep>> ParsePreTokenizer(const TokenizerJson& json);

// How a match of a pattern is split off.
enum class SplitBehavior {
  kIsolated,            // it becomes a word of its own
  kRemoved,             // it is removed
  kMergedWithPrevious,  // it is joined to the word before
  kMergedWithNext,      // it is joined to the word behind
  kContiguous,          // neighbouring matches become one word
};

// Splits every word at the ranges that `find` appends for it. The ranges are ordered, disjoint, and
// relative to the word.
using FindRanges = std::function<absl::Status(std::string_view word, std::vector<TextRange>& ranges)>;
PreTokenizeStep SplitStep(FindRanges find, SplitBehavior behavior, bool invert);

}  // namespace lime
