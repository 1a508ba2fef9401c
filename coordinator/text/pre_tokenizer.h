// The "pre_tokenizer" of tokenizer.json: splits a normalised text into the words that the model sees one by one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "coordinator/text/json_access.h"
#include "coordinator/text/regex.h"

namespace lime {

// A text and the words in it, in order. Steps narrow the words and may rewrite the text.
struct Words {
  struct Word {
    TextRange range;         // bytes of `text`
    size_t start_bytes = 0;  // bytes in front that stand for the first character of the whole input
  };
  std::string text;
  std::vector<Word> words;

  std::string_view Text(const Word& word) const {
    return std::string_view(text).substr(word.range.begin, word.range.end - word.range.begin);
  }
};

using PreTokenizeStep = std::function<absl::Status(Words& words)>;

// Sequences flattened, in order. Null gives no steps.
absl::StatusOr<std::vector<PreTokenizeStep>> ParsePreTokenizer(const Json& json);

// What becomes of the text a pattern matches.
enum class SplitBehavior {
  kIsolated,            // a word of its own
  kRemoved,             // dropped
  kMergedWithPrevious,  // joined to the word before
  kMergedWithNext,      // joined to the word behind
  kContiguous,          // neighbouring matches make one word
};

// Splits every word at the ranges that `find` appends for it (ordered, disjoint, relative to the word).
using FindRanges = std::function<absl::Status(std::string_view word, std::vector<TextRange>& ranges)>;
PreTokenizeStep SplitStep(FindRanges find, SplitBehavior behavior, bool invert);

}  // namespace lime
