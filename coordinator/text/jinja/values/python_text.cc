#include "coordinator/text/jinja/values/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "coordinator/text/unicode/unicode.h"
#include "coordinator/text/unicode/unicode_data.h"
#include "coordinator/text/unicode/utf8.h"
#include "planner/base/strings.h"

namespace lime::jinja {
namespace {

bool IsContinuation(char c) {
  return (static_cast<uint8_t>(c) & 0xC0) == 0x80;
}

bool IsLowerChar(char32_t code) {
  static const CodeSet set = GetCodeSet("Lowercase");
  return Contains(set, code);
}

bool IsUpperChar(char32_t code) {
  static const CodeSet set = GetCodeSet("Uppercase");
  return Contains(set, code);
}

bool IsTitleChar(char32_t code) {
  static const CodeSet set = GetCodeSet("Lt");
  return Contains(set, code);
}

bool HasCase(char32_t code) {
  return IsLowerChar(code) || IsUpperChar(code) || IsTitleChar(code);
}

bool IsLetter(char32_t code) {
  static const CodeSet set = GetCodeSet("L");
  return Contains(set, code);
}

bool IsPrintable(char32_t code) {
  static const CodeSet others = GetCodeSet("C"), separators = GetCodeSet("Z");
  return code == ' ' || (!Contains(others, code) && !Contains(separators, code));
}

// Whether there are characters, and all of them are so.
template <typename Predicate>
bool All(std::string_view text, Predicate is_so) {
  if (text.empty()) return false;
  while (!text.empty()) {
    if (!is_so(NextChar(text))) return false;
  }
  return true;
}

// Whether there are characters with case, and each is of the wanted one.
bool IsOfCase(std::string_view text, bool (*wanted)(char32_t)) {
  bool found = false;
  while (!text.empty()) {
    const char32_t code = NextChar(text);
    if (!HasCase(code)) continue;
    if (!wanted(code)) return false;
    found = true;
  }
  return found;
}

std::string Reversed(std::string_view bytes) {
  return {bytes.rbegin(), bytes.rend()};
}

char32_t PreviousChar(std::string_view& text) {
  const char32_t code = LastChar(text);
  size_t begin = text.size() - 1;
  while (begin > 0 && IsContinuation(text[begin])) --begin;
  text.remove_suffix(text.size() - begin);
  return code;
}

std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t most, bool from_right) {
  std::vector<std::string_view> words;
  const Side near = from_right ? Side::kRight : Side::kLeft;
  text = Strip(text, std::nullopt, near);
  for (; !text.empty() && most != 0; --most) {
    std::string_view rest = text;
    size_t length = 0;
    while (!rest.empty() && !IsPythonSpace(from_right ? PreviousChar(rest) : NextChar(rest))) length = text.size() - rest.size();
    words.push_back(from_right ? text.substr(text.size() - length) : text.substr(0, length));
    from_right ? text.remove_suffix(length) : text.remove_prefix(length);
    text = Strip(text, std::nullopt, near);
  }
  if (!text.empty()) words.push_back(text);
  if (from_right) std::reverse(words.begin(), words.end());
  return words;
}

bool IsLineEnd(char32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 || code == 0x2029;
}

void AppendHex(char letter, char32_t code, size_t digits, std::string& out) {
  const std::string hex = absl::StrCat(absl::Hex(static_cast<uint32_t>(code)));
  out.append({'\\', letter}).append(digits - std::min(digits, hex.size()), '0').append(hex);
}

// Digits of `base`, with single underscores between them.
std::optional<__int128> ParseDigits(std::string_view digits, int base) {
  __int128 value = 0;
  bool after_digit = false;
  for (const char c : digits) {
    if (c == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)) return std::nullopt;
    after_digit = true;
  }
  return after_digit ? std::optional(value) : std::nullopt;
}

int BaseOfPrefix(std::string_view digits) {
  if (digits.size() < 2 || digits[0] != '0') return 10;
  switch (digits[1] | 0x20) {
    case 'x':
      return 16;
    case 'o':
      return 8;
    case 'b':
      return 2;
    default:
      return 10;
  }
}

constexpr std::string_view kSigma = "\u03A3";

// Whether the Sigma at `at` ends a word. Characters such as marks and apostrophes do not count.
bool IsFinalSigma(std::string_view text, size_t at) {
  static const CodeSet ignored = GetCodeSet("Case_Ignorable");
  char32_t before = 0, behind = 0;
  for (std::string_view rest = text.substr(0, at); !rest.empty() && Contains(ignored, before = PreviousChar(rest));) before = 0;
  for (std::string_view rest = text.substr(at + kSigma.size()); !rest.empty() && Contains(ignored, behind = NextChar(rest));) behind = 0;
  return HasCase(before) && !HasCase(behind);
}

// The lower case of `one`, a character of `text`.
std::string LowerOf(std::string_view text, std::string_view one) {
  if (one != kSigma) return LowercaseUnicode(one);
  return IsFinalSigma(text, one.data() - text.data()) ? "\u03C2" : "\u03C3";
}

// The characters whose upper case is `one` folded, in upper case; nothing for others.
std::string FoldedIfLonger(std::string_view one) {
  std::string_view rest = one;
  const char32_t code = NextChar(rest);
  if (code < 0x80 || code == 0x130 || code == 0x1E9E) return "";
  std::string folded = CasefoldUnicode(one);
  return Length(folded) > 1 ? folded : "";
}

std::string UpperOf(std::string_view one) {
  const std::string folded = FoldedIfLonger(one);
  return UppercaseUnicode(folded.empty() ? one : folded);
}

std::string TitleOf(std::string_view one) {
  const std::string folded = FoldedIfLonger(one);
  std::string_view rest = one;
  const bool is_title = IsTitleChar(NextChar(rest));
  std::string simple = TitlecaseUnicode(one);
  if (folded.empty() || is_title || simple != one) return simple;
  const std::string_view first = std::string_view(folded).substr(0, BytesBefore(folded, 1));
  const std::string upper = UppercaseUnicode(first);
  if (upper == first) return UppercaseUnicode(folded);
  return upper + Replace(std::string_view(folded).substr(first.size()), "\u03B9", "\u0345");
}

// Each character of `text` by `change`, which is given the character.
template <typename Change>
std::string EachChar(std::string_view text, Change change) {
  std::string out;
  while (!text.empty()) {
    std::string_view rest = text;
    NextChar(rest);
    out.append(change(text.substr(0, text.size() - rest.size())));
    text = rest;
  }
  return out;
}

char32_t FirstChar(std::string_view text) {
  return NextChar(text);
}

}  // namespace

char32_t NextChar(std::string_view& text) {
  const Utf8Char next = DecodeUtf8(text);
  text.remove_prefix(next.length);
  return next.code;
}

bool IsPythonSpace(char32_t code) {
  return IsUnicodeSpace(code) || (code >= 0x1C && code <= 0x1F);
}

int64_t Length(std::string_view text) {
  return static_cast<int64_t>(text.size()) - std::count_if(text.begin(), text.end(), IsContinuation);
}

size_t BytesBefore(std::string_view text, int64_t position) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!IsContinuation(text[at]) && position-- <= 0) break;
  }
  return at;
}

std::string Shortened(std::string_view text) {
  constexpr int64_t kMost = 60;
  const size_t end = BytesBefore(text, kMost);
  return absl::StrCat(Text(text.substr(0, end)), end < text.size() ? "..." : "");
}

size_t Find(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* found = ::memmem(text.data() + from, text.size() - from, part.data(), part.size());  // linear, unlike find()
  return found == nullptr ? std::string_view::npos : static_cast<const char*>(found) - text.data();
}

size_t FindLast(std::string_view text, std::string_view part) {
  const size_t found = Find(Reversed(text), Reversed(part));
  return found == std::string_view::npos ? found : text.size() - found - part.size();
}

int64_t Count(std::string_view text, std::string_view part) {
  if (part.empty()) return Length(text) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = Find(text, part, at)) != std::string_view::npos; at += part.size()) ++count;
  return count;
}

std::string Replace(std::string_view text, std::string_view old, std::string_view by, int64_t most) {
  std::string out;
  size_t done = 0;
  for (size_t at = 0; most != 0 && (at = Find(text, old, at)) != std::string_view::npos; --most) {
    out.append(text.substr(done, at - done)).append(by);
    done = at + old.size();
    at = done;
    if (!old.empty()) continue;
    if (at == text.size()) break;  // an empty string is found before each character and at the end
    do ++at;
    while (at < text.size() && IsContinuation(text[at]));
  }
  return out.append(text.substr(done));
}

std::string_view Strip(std::string_view text, std::optional<std::string_view> chars, Side side) {
  absl::flat_hash_set<char32_t> set;
  for (std::string_view rest = chars.value_or(""); !rest.empty();) set.insert(NextChar(rest));
  const auto goes = [&](char32_t code) { return chars.has_value() ? set.contains(code) : IsPythonSpace(code); };
  for (std::string_view rest = text; side != Side::kRight && !rest.empty() && goes(NextChar(rest));) text = rest;
  for (std::string_view rest = text; side != Side::kLeft && !rest.empty() && goes(PreviousChar(rest));) text = rest;
  return text;
}

std::vector<std::string_view> Split(std::string_view text, std::optional<std::string_view> separator, int64_t most, bool from_right) {
  if (!separator.has_value()) return SplitAtSpace(text, most, from_right);
  std::vector<std::string_view> parts;
  if (from_right) {
    const std::string reversed = Reversed(text), mark = Reversed(*separator);
    size_t end = text.size();  // of what is left
    for (size_t at = 0; most != 0 && (at = Find(reversed, mark, text.size() - end)) != std::string::npos; --most) {
      parts.push_back(text.substr(text.size() - at, end - (text.size() - at)));
      end = text.size() - at - mark.size();
    }
    parts.push_back(text.substr(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t begin = 0;
  for (size_t at = 0; most != 0 && (at = Find(text, *separator, begin)) != std::string_view::npos; --most) {
    parts.push_back(text.substr(begin, at - begin));
    begin = at + separator->size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view before = rest;
    const char32_t code = NextChar(rest);
    if (!IsLineEnd(code)) continue;
    const size_t end = text.size() - before.size();
    if (code == '\r' && !rest.empty() && rest.front() == '\n') rest.remove_prefix(1);
    lines.push_back(text.substr(0, keep_ends ? text.size() - rest.size() : end));
    text = rest;
  }
  if (!text.empty()) lines.push_back(text);
  return lines;
}

std::string Lower(std::string_view text) {
  if (Find(text, kSigma) == std::string_view::npos) return LowercaseUnicode(text);
  return EachChar(text, [text](std::string_view one) { return LowerOf(text, one); });
}

std::string Upper(std::string_view text) {
  return EachChar(text, UpperOf);
}

std::string Casefold(std::string_view text) {
  return CasefoldUnicode(text);
}

std::string SwapCase(std::string_view text) {
  return EachChar(text, [text](std::string_view one) { return IsUpperChar(FirstChar(one)) ? LowerOf(text, one) : UpperOf(one); });
}

std::string Capitalize(std::string_view text) {
  return EachChar(text, [text](std::string_view one) { return one.data() == text.data() ? TitleOf(one) : LowerOf(text, one); });
}

std::string Title(std::string_view text) {
  bool in_word = false;
  return EachChar(text, [text, &in_word](std::string_view one) {
    const bool was_in_word = std::exchange(in_word, HasCase(FirstChar(one)));
    return was_in_word ? LowerOf(text, one) : TitleOf(one);
  });
}

bool IsLower(std::string_view text) {
  return IsOfCase(text, IsLowerChar);
}

bool IsUpper(std::string_view text) {
  return IsOfCase(text, IsUpperChar);
}

bool IsTitle(std::string_view text) {
  bool in_word = false, found = false;
  while (!text.empty()) {
    const char32_t code = NextChar(text);
    const bool begins = IsUpperChar(code) || IsTitleChar(code);
    if (HasCase(code) && begins == in_word) return false;
    in_word = HasCase(code);
    found = found || in_word;
  }
  return found;
}

bool IsAlpha(std::string_view text) {
  return All(text, IsLetter);
}

bool IsDigit(std::string_view text) {
  static const CodeSet digits = GetCodeSet("Nd");
  return All(text, [](char32_t code) { return Contains(digits, code); });
}

bool IsAlphanumeric(std::string_view text) {
  return All(text, [](char32_t code) { return IsLetter(code) || IsUnicodeNumber(code); });
}

bool IsSpace(std::string_view text) {
  return All(text, IsPythonSpace);
}

std::string Quoted(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos, has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  while (!text.empty()) {
    const std::string_view before = text;
    const char32_t code = NextChar(text);
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      out.append({'\\', static_cast<char>(code)});
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out.append(code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t");
    } else if (IsPrintable(code)) {
      out.append(before.substr(0, before.size() - text.size()));
    } else if (code < 0x100) {
      AppendHex('x', code, 2, out);
    } else {
      code < 0x10000 ? AppendHex('u', code, 4, out) : AppendHex('U', code, 8, out);
    }
  }
  return out.append(1, quote);
}

std::string HtmlEscaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out.append("&amp;");
        break;
      case '<':
        out.append("&lt;");
        break;
      case '>':
        out.append("&gt;");
        break;
      case '\'':
        out.append("&#39;");
        break;
      case '"':
        out.append("&#34;");
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

std::string IntText(__int128 value) {
  if (value >= INT64_MIN && value <= INT64_MAX) return absl::StrCat(static_cast<int64_t>(value));
  auto rest = value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  std::string digits;
  for (; rest != 0; rest /= 10) digits.push_back(static_cast<char>('0' + static_cast<int>(rest % 10)));
  if (value < 0) digits.push_back('-');
  return Reversed(digits);
}

std::optional<__int128> ParseInt(std::string_view text, int base) {
  text = Strip(text, std::nullopt, Side::kBoth);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const int prefix = BaseOfPrefix(text);
  if (prefix != 10 && (base == 0 || base == prefix)) {
    text.remove_prefix(text.size() > 2 && text[2] == '_' ? 3 : 2);
    base = prefix;
  }
  const auto value = ParseDigits(text, base == 0 ? 10 : base);
  return value.has_value() && negative ? std::optional(-*value) : value;
}

std::optional<double> ParseFloat(std::string_view text) {
  text = Strip(text, std::nullopt, Side::kBoth);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (text[i] == '_' && i > 0 && is_digit(i - 1) && is_digit(i + 1)) continue;
    plain.push_back(static_cast<char>(text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 0x20 : text[i]));
  }
  const bool is_word = plain == "inf" || plain == "infinity" || plain == "nan";
  if (plain.empty() || (!is_word && plain[0] != '.' && (plain[0] < '0' || plain[0] > '9'))) return std::nullopt;
  double value = 0;
  const auto parsed = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (parsed.ptr != plain.data() + plain.size()) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) {  // too large, or too close to 0
    const size_t exponent = plain.find('e');
    value = exponent != std::string::npos && plain.substr(exponent).starts_with("e-") ? 0 : HUGE_VAL;
  }
  return negative ? -value : value;
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, end - buffer);
  const size_t mark = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(mark + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto fixed = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed).ptr;
  std::string out(buffer, fixed);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

}  // namespace lime::jinja
