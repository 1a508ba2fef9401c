// Unicode normal forms and character classes, for well-formed UTF-8.
//
// Ids depend on the tables of the tokenizers library. Its parts use different releases of Unicode:
// 15 and later for white space, words, numbers and case, 9 for normal forms and combining marks, 8
// for punctuation, nonspacing marks and control characters.
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

// Time: linear, except for a sort inside each run of combining marks.
absl::StatusOr<std::string> NormalizeUnicode(std::string_view text, NormalForm form);

// These work character by character. Title case is the upper case of a word's first character, and
// differs from it for a few.
std::string LowercaseUnicode(std::string_view text);
std::string UppercaseUnicode(std::string_view text);
std::string TitlecaseUnicode(std::string_view text);

// For comparisons without case. Makes two or three characters of some.
std::string CasefoldUnicode(std::string_view text);

// Bytes of the first grapheme cluster, which is seen as one character. REQUIRES: !text.empty().
size_t GraphemeLength(std::string_view text);

// Keeps the characters for which `keep` is true.
std::string Filter(std::string_view text, bool (*keep)(char32_t));

// The White_Space property.
bool IsUnicodeSpace(char32_t code);

// \w as in Rust: letters, marks, decimal digits, connector punctuation, and the joiners U+200C and
// U+200D.
bool IsUnicodeWord(char32_t code);

// Decimal digits, letters that are numbers, and other numbers.
bool IsUnicodeNumber(char32_t code);

// Punctuation, and the ASCII symbols.
bool IsUnicodePunctuation(char32_t code);

// Mn, Mc and Me.
bool IsCombiningMark(char32_t code);

// Mn.
bool IsNonspacingMark(char32_t code);

// Cc, Cf and Co.
bool IsControl(char32_t code);

// Bytes of white space at either end of `text`.
size_t LeadingSpace(std::string_view text);
size_t TrailingSpace(std::string_view text);

// The last character of `text`. REQUIRES: !text.empty().
char32_t LastChar(std::string_view text);

}  // namespace lime
