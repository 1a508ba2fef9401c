#include "coordinator/text/unicode/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "coordinator/text/unicode/unicode_data.h"
#include "coordinator/text/unicode/utf8.h"

namespace lime {
namespace {

// Normal forms are those of Unicode 9, as in the tokenizers library. Later characters stay
// unchanged, and no mark moves across them.
bool HasNormalForms(int32_t code) {
  static const CodeSet known = GetCodeSet("Age=9.0");
  return code < 0x300 || Contains(known, static_cast<char32_t>(code));
}

int CombiningClass(int32_t code) {
  return HasNormalForms(code) ? utf8proc_get_property(code)->combining_class : 0;
}

// utf8proc's own reordering is quadratic in the length of a run of marks. Sorting the runs first
// leaves it no work.
void SortCombiningRuns(std::vector<int32_t>& codes) {
  const auto is_mark = [](int32_t code) { return CombiningClass(code) != 0; };
  for (auto it = codes.begin(); it != codes.end();) {
    it = std::find_if(it, codes.end(), is_mark);
    const auto end = std::find_if_not(it, codes.end(), is_mark);
    std::stable_sort(it, end, [](int32_t a, int32_t b) { return CombiningClass(a) < CombiningClass(b); });
    it = end;
  }
}

absl::StatusOr<std::vector<int32_t>> Decompose(std::string_view text, utf8proc_option_t options) {
  std::vector<int32_t> codes;
  codes.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char next = DecodeUtf8(text);
    text.remove_prefix(next.length);
    if (!HasNormalForms(static_cast<int32_t>(next.code))) {
      codes.push_back(static_cast<int32_t>(next.code));
      continue;
    }
    int32_t parts[32];  // the longest decomposition has 18
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<int32_t>(next.code), parts, 32, options, &boundary);
    if (count < 0 || count > 32) return absl::InternalError(absl::StrCat("cannot decompose U+", absl::Hex(uint32_t{next.code})));
    codes.insert(codes.end(), parts, parts + count);
  }
  return codes;
}

// Composes each stretch between characters without normal forms.
std::vector<int32_t> Compose(std::vector<int32_t> codes, utf8proc_option_t options) {
  std::vector<int32_t> out;
  for (auto begin = codes.begin(); begin != codes.end();) {
    auto end = std::find_if_not(begin, codes.end(), HasNormalForms);
    const auto count = utf8proc_normalize_utf32(&*begin, end - begin, options);
    out.insert(out.end(), begin, begin + count);
    if (end != codes.end()) out.push_back(*end++);
    begin = end;
  }
  return out;
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

}  // namespace

absl::StatusOr<std::string> NormalizeUnicode(std::string_view text, NormalForm form) {
  if (IsAscii(text)) return std::string(text);
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto stable = static_cast<int>(UTF8PROC_STABLE) | (compatible ? UTF8PROC_COMPAT : 0);
  LIME_ASSIGN_OR_RETURN(auto codes, Decompose(text, static_cast<utf8proc_option_t>(stable | UTF8PROC_DECOMPOSE)));
  SortCombiningRuns(codes);
  if (compose) codes = Compose(std::move(codes), static_cast<utf8proc_option_t>(stable | UTF8PROC_COMPOSE));
  std::string out;
  out.reserve(text.size());
  for (const int32_t code : codes) AppendUtf8(code, out);
  return out;
}

std::string LowercaseUnicode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (; !text.empty(); text.remove_prefix(DecodeUtf8(text).length)) {
    const char32_t code = DecodeUtf8(text).code;
    if (code == 0x130) {
      out.append("i\u0307");  // the only character whose lower case has two
    } else {
      AppendUtf8(utf8proc_tolower(static_cast<int32_t>(code)), out);
    }
  }
  return out;
}

std::string UppercaseUnicode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (; !text.empty(); text.remove_prefix(DecodeUtf8(text).length)) {
    const char32_t code = DecodeUtf8(text).code;
    if (code == 0xDF) {
      out.append("SS");  // the only one in common use whose upper case has two
    } else {
      AppendUtf8(utf8proc_toupper(static_cast<int32_t>(code)), out);
    }
  }
  return out;
}

std::string TitlecaseUnicode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (; !text.empty(); text.remove_prefix(DecodeUtf8(text).length)) {
    const char32_t code = DecodeUtf8(text).code;
    if (code == 0xDF) {
      out.append("Ss");
    } else {
      AppendUtf8(utf8proc_totitle(static_cast<int32_t>(code)), out);
    }
  }
  return out;
}

std::string CasefoldUnicode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (; !text.empty(); text.remove_prefix(DecodeUtf8(text).length)) {
    int32_t parts[4];  // the longest has 3
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<int32_t>(DecodeUtf8(text).code), parts, 4, UTF8PROC_CASEFOLD, &boundary);
    for (int i = 0; i < count; ++i) AppendUtf8(parts[i], out);
  }
  return out;
}

size_t GraphemeLength(std::string_view text) {
  Utf8Char last = DecodeUtf8(text);
  auto length = static_cast<size_t>(last.length);
  utf8proc_int32_t state = 0;
  while (length < text.size()) {
    const Utf8Char next = DecodeUtf8(text.substr(length));
    if (utf8proc_grapheme_break_stateful(static_cast<int32_t>(last.code), static_cast<int32_t>(next.code), &state)) break;
    length += next.length;
    last = next;
  }
  return length;
}

std::string Filter(std::string_view text, bool (*keep)(char32_t)) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char next = DecodeUtf8(text);
    if (keep(next.code)) out.append(text.substr(0, next.length));
    text.remove_prefix(next.length);
  }
  return out;
}

bool IsUnicodeSpace(char32_t code) {
  static const CodeSet spaces = GetCodeSet("White_Space");
  return Contains(spaces, code);
}

bool IsUnicodeWord(char32_t code) {
  static const CodeSet words = GetCodeSet("Word");
  if (code < 0x80) return absl::ascii_isalnum(static_cast<unsigned char>(code)) || code == '_';
  return Contains(words, code) || code == 0x200C || code == 0x200D;
}

bool IsUnicodeNumber(char32_t code) {
  static const CodeSet numbers = GetCodeSet("N");
  return Contains(numbers, code);
}

bool IsUnicodePunctuation(char32_t code) {
  static const CodeSet punctuation = GetCodeSet("P"), known = GetCodeSet("Age=8.0");
  if (code < 0x80) return absl::ascii_ispunct(static_cast<unsigned char>(code));
  if (code == 0x166D || code == 0x111C9) return true;  // their classes in Unicode 8
  return Contains(punctuation, code) && Contains(known, code);
}

bool IsCombiningMark(char32_t code) {
  static const CodeSet marks = GetCodeSet("M"), known = GetCodeSet("Age=9.0");
  // Their classes in Unicode 9.
  if (code == 0x1CF2 || code == 0x1CF3 || code == 0x111C9) return code != 0x111C9;
  return Contains(marks, code) && Contains(known, code);
}

bool IsNonspacingMark(char32_t code) {
  static const CodeSet marks = GetCodeSet("Mn"), known = GetCodeSet("Age=8.0");
  if (code == 0x1734) return true;  // their classes in Unicode 8
  if (code == 0x1885 || code == 0x1886 || code == 0xA9BD || code == 0x111C9) return false;
  return Contains(marks, code) && Contains(known, code);
}

bool IsControl(char32_t code) {
  static const CodeSet control = GetCodeSet("Cc"), format = GetCodeSet("Cf"), own = GetCodeSet("Co"), known = GetCodeSet("Age=8.0");
  return Contains(control, code) || Contains(own, code) || (Contains(format, code) && Contains(known, code));
}

size_t LeadingSpace(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const Utf8Char next = DecodeUtf8(text.substr(length));
    if (!IsUnicodeSpace(next.code)) break;
    length += next.length;
  }
  return length;
}

size_t TrailingSpace(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!IsUnicodeSpace(DecodeUtf8(text.substr(begin)).code)) break;
    end = begin;
  }
  return text.size() - end;
}

char32_t LastChar(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return DecodeUtf8(text.substr(begin)).code;
}

}  // namespace lime
