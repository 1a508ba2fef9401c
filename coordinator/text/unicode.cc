#include "coordinator/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/text/utf8.h"

namespace lime {
namespace {

int CombiningClass(int32_t code) {
  return utf8proc_get_property(code)->combining_class;
}

// The library's own reordering is quadratic in the length of a run of marks; sorting the runs first leaves it nothing to do.
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
    int32_t parts[32];  // the longest decomposition has 18
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<int32_t>(next.code), parts, 32, options, &boundary);
    if (count < 0 || count > 32) return absl::InternalError(absl::StrCat("cannot decompose U+", absl::Hex(uint32_t{next.code})));
    codes.insert(codes.end(), parts, parts + count);
    text.remove_prefix(next.length);
  }
  return codes;
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
  if (compose) {
    const auto options = static_cast<utf8proc_option_t>(stable | UTF8PROC_COMPOSE);
    codes.resize(utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), options));
  }
  std::string out;
  out.reserve(text.size());
  for (const int32_t code : codes) AppendUtf8(code, out);
  return out;
}

std::string LowercaseUnicode(std::string_view text) {
  std::string out;
  for (; !text.empty(); text.remove_prefix(DecodeUtf8(text).length)) {
    AppendUtf8(utf8proc_tolower(static_cast<int32_t>(DecodeUtf8(text).code)), out);
  }
  return out;
}

std::string StripMarks(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Char next = DecodeUtf8(text);
    if (utf8proc_category(static_cast<int32_t>(next.code)) != UTF8PROC_CATEGORY_MN) out.append(text.substr(0, next.length));
    text.remove_prefix(next.length);
  }
  return out;
}

bool IsUnicodeSpace(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13);
  if (code == 0x85 || code == 0x2028 || code == 0x2029) return true;
  return utf8proc_category(static_cast<int32_t>(code)) == UTF8PROC_CATEGORY_ZS;
}

bool IsUnicodeWord(char32_t code) {
  const auto category = utf8proc_category(static_cast<int32_t>(code));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) || category == UTF8PROC_CATEGORY_PC;
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
