// Unicode normal forms and character classes, on well-formed UTF-8.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

enum class NormalForm {
  kNfc,   // canonical composition
  kNfd,   // canonical decomposition
  kNfkc,  // compatibility composition
  kNfkd,  // compatibility decomposition
};

// Time is linear but for a sort inside each run of combining marks.
absl::StatusOr<std::string> NormalizeUnicode(std::string_view text, NormalForm form);

// Simple case mapping, character by character.
std::string LowercaseUnicode(std::string_view text);

// Drops the nonspacing marks (category Mn).
std::string StripMarks(std::string_view text);

// The White_Space property.
bool IsUnicodeSpace(char32_t code);

// What \w means to tokenizers: letters, marks, decimal digits, connector punctuation.
bool IsUnicodeWord(char32_t code);

// Bytes of white space at either end of `text`.
size_t LeadingSpace(std::string_view text);
size_t TrailingSpace(std::string_view text);

// The last character of `text`. REQUIRES: !text.empty().
char32_t LastChar(std::string_view text);

}  // namespace lime
