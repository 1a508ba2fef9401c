#include "coordinator/text/jinja/syntax/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/ascii.h"
#include "coordinator/text/jinja/syntax/syntax.h"
#include "coordinator/text/jinja/values/python_text.h"
#include "coordinator/text/unicode/unicode.h"
#include "coordinator/text/unicode/utf8.h"
#include "planner/base/strings.h"

namespace lime::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

// All line ends become "\n", and one at the end is dropped.
std::string WithPlainLineEnds(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out.push_back(source[i] == '\r' ? '\n' : source[i]);
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool IsDigitChar(char c) {
  return absl::ascii_isdigit(static_cast<unsigned char>(c));
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), rest_(source_) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (!rest_.empty()) LIME_RETURN_IF_ERROR(ReadText());
    Emit(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void Emit(TokenKind kind, std::string text) { tokens_.push_back({.kind = kind, .text = std::move(text), .line = line_}); }

  void Skip(size_t bytes) {
    line_ += static_cast<int>(std::ranges::count(rest_.substr(0, bytes), '\n'));
    rest_.remove_prefix(bytes);
  }

  void SkipSpace() { Skip(rest_.size() - Strip(rest_, std::nullopt, Side::kLeft).size()); }

  // The text up to the next tag, and that tag.
  absl::Status ReadText() {
    size_t at = 0;
    while ((at = rest_.find('{', at)) != kNone && (at + 1 == rest_.size() || !IsOpener(rest_[at + 1]))) ++at;
    if (at == kNone) {
      EmitText(rest_);
      Skip(rest_.size());
      return absl::OkStatus();
    }
    const char opener = rest_[at + 1], sign = SignAt(at + 2);
    EmitText(Trimmed(rest_.substr(0, at), sign, opener != '{'));
    Skip(at + (sign == 0 ? 2 : 3));
    if (opener == '#') return SkipComment();
    if (opener == '%' && AtRaw()) return ReadRaw();
    return ReadTag(opener == '{');
  }

  static bool IsOpener(char c) { return c == '{' || c == '%' || c == '#'; }

  char SignAt(size_t at) const { return at < rest_.size() && (rest_[at] == '-' || rest_[at] == '+') ? rest_[at] : '\0'; }

  void EmitText(std::string_view text) {
    if (!text.empty()) Emit(TokenKind::kText, std::string(text));
  }

  // `text` is at the beginning of what is left. Removes its white space before a tag: all with "-";
  // without a sign, that between a line's begin and a block or comment.
  std::string_view Trimmed(std::string_view text, char sign, bool strips_indent) const {
    if (sign == '-') return Strip(text, std::nullopt, Side::kRight);
    if (sign == '+' || !strips_indent) return text;
    const size_t line_end = text.rfind('\n');
    const size_t begin = line_end == kNone ? 0 : line_end + 1;
    if (line_end == kNone && !AtLineBegin()) return text;
    return Strip(text.substr(begin), std::nullopt, Side::kLeft).empty() ? text.substr(0, begin) : text;
  }

  bool AtLineBegin() const { return rest_.data() == source_.data() || rest_.data()[-1] == '\n'; }

  // Behind the end of a tag: all white space with "-", else the line end of a block or comment.
  void SkipBehind(char sign, bool is_output) {
    if (sign == '-') return SkipSpace();
    if (sign != '+' && !is_output && rest_.starts_with('\n')) Skip(1);
  }

  absl::Status SkipComment() {
    const int line = line_;
    const size_t end = rest_.find("#}");
    if (end == kNone) return WrongAt(line, "the comment has no end; write \"#}\" behind it");
    const char sign = end == 0 ? '\0' : SignAt(end - 1);
    Skip(end + 2);
    SkipBehind(sign, /*is_output=*/false);
    return absl::OkStatus();
  }

  // The bytes of `word` and the end of its tag, if that is all that the tag says. The sign before
  // the end goes to `sign`.
  static std::optional<size_t> TagOf(std::string_view text, std::string_view word, char* sign) {
    const std::string_view inside = Strip(text, std::nullopt, Side::kLeft);
    if (!inside.starts_with(word)) return std::nullopt;
    std::string_view end = Strip(inside.substr(word.size()), std::nullopt, Side::kLeft);
    *sign = end.starts_with('-') || end.starts_with('+') ? end.front() : '\0';
    if (*sign != 0) end.remove_prefix(1);
    if (!end.starts_with("%}")) return std::nullopt;
    return text.size() - end.size() + 2;
  }

  bool AtRaw() const {
    char sign = 0;
    return TagOf(rest_, "raw", &sign).has_value() && sign != '+';
  }

  absl::Status ReadRaw() {
    const int line = line_;
    char sign = 0;
    Skip(*TagOf(rest_, "raw", &sign));
    if (sign == '-') SkipSpace();  // but a line end stays
    for (size_t at = 0; (at = rest_.find("{%", at)) != kNone; ++at) {
      const char before = SignAt(at + 2);
      const size_t inside = at + (before == 0 ? 2 : 3);
      const auto length = TagOf(rest_.substr(inside), "endraw", &sign);
      if (!length.has_value()) continue;
      EmitText(Trimmed(rest_.substr(0, at), before, /*strips_indent=*/true));
      Skip(inside + *length);
      SkipBehind(sign, /*is_output=*/false);
      return absl::OkStatus();
    }
    return WrongAt(line, "{% raw %} has no end; write {% endraw %} behind it");
  }

  absl::Status ReadTag(bool is_output) {
    const int line = line_;
    const std::string_view end = is_output ? "}}" : "%}";
    Emit(is_output ? TokenKind::kOutputBegin : TokenKind::kTagBegin, "");
    std::string open;  // brackets
    while (true) {
      SkipSpace();
      if (rest_.empty()) return WrongAt(line, "the tag that begins here has no end; write \"", Text(end), "\" behind it");
      if (open.empty() && AtTagEnd(end, is_output)) break;
      LIME_RETURN_IF_ERROR(ReadToken(open));
    }
    const char sign = rest_.starts_with(end) ? '\0' : rest_.front();
    Emit(is_output ? TokenKind::kOutputEnd : TokenKind::kTagEnd, "");
    Skip(sign == 0 ? 2 : 3);
    SkipBehind(sign, is_output);
    return absl::OkStatus();
  }

  bool AtTagEnd(std::string_view end, bool is_output) const {
    if (rest_.starts_with(end)) return true;
    return (rest_.front() == '-' || (rest_.front() == '+' && !is_output)) && rest_.substr(1).starts_with(end);
  }

  absl::Status ReadToken(std::string& open) {
    const char c = rest_.front();
    if (IsDigitChar(c)) return ReadNumber();
    if (c == '"' || c == '\'') return ReadString(c);
    if (const size_t length = NameLength(); length > 0) {
      Emit(TokenKind::kName, std::string(rest_.substr(0, length)));
      Skip(length);
      return absl::OkStatus();
    }
    return ReadSymbol(open);
  }

  size_t NameLength() const {
    std::string_view left = rest_;
    size_t length = 0;
    while (!left.empty() && IsUnicodeWord(NextChar(left))) length = rest_.size() - left.size();
    return length;
  }

  // Digits with single underscores between them, from `at` on; 0: none.
  template <typename Predicate>
  size_t DigitsAt(size_t at, Predicate is_digit) const {
    size_t length = 0;
    while (at + length < rest_.size()) {
      const size_t next = at + length + (length > 0 && rest_[at + length] == '_' ? 1 : 0);
      if (next >= rest_.size() || !is_digit(rest_[next])) break;
      length = next + 1 - at;
    }
    return length;
  }

  size_t FloatLength() const {
    if (rest_.data() != source_.data() && rest_.data()[-1] == '.') return 0;  // a.0.1 has two integers
    const size_t whole = DigitsAt(0, IsDigitChar);
    size_t length = whole;
    if (length < rest_.size() && rest_[length] == '.') {
      const size_t fraction = DigitsAt(length + 1, IsDigitChar);
      if (fraction > 0) length += 1 + fraction;
    }
    if (length < rest_.size() && (rest_[length] | 0x20) == 'e') {
      const size_t exponent = DigitsAt(length + 1 + (SignAt(length + 1) != 0), IsDigitChar);
      if (exponent > 0) return length + 1 + (SignAt(length + 1) != 0) + exponent;
    }
    return length > whole ? length : 0;
  }

  size_t IntegerLength() const {
    const char prefix = rest_.size() > 1 && rest_[0] == '0' ? static_cast<char>(rest_[1] | 0x20) : '\0';
    const auto in_base = [&](auto is_digit) {
      const size_t underscore = rest_.size() > 2 && rest_[2] == '_' ? 1 : 0;
      const size_t digits = DigitsAt(2 + underscore, is_digit);
      return digits == 0 ? 1 : 2 + underscore + digits;
    };
    if (prefix == 'x') return in_base([](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); });
    if (prefix == 'o') return in_base([](char c) { return c >= '0' && c <= '7'; });
    if (prefix == 'b') return in_base([](char c) { return c == '0' || c == '1'; });
    return rest_[0] == '0' ? DigitsAt(0, [](char c) { return c == '0'; }) : DigitsAt(0, IsDigitChar);
  }

  absl::Status ReadNumber() {
    const size_t as_float = FloatLength(), length = as_float > 0 ? as_float : IntegerLength();
    Emit(as_float > 0 ? TokenKind::kFloat : TokenKind::kInteger, std::string(rest_.substr(0, length)));
    Skip(length);
    return absl::OkStatus();
  }

  absl::Status ReadString(char quote) {
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) return WrongAt(line_, "the string that begins here has no end; write ", std::string(1, quote), " behind it");
    LIME_ASSIGN_OR_RETURN(std::string text, Unescaped(rest_.substr(1, end - 1)));
    Emit(TokenKind::kString, std::move(text));
    Skip(end + 1);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Unescaped(std::string_view text) const {
    std::string out;
    while (!text.empty()) {
      const size_t plain = std::min(text.find('\\'), text.size());
      out.append(text.substr(0, plain));
      text.remove_prefix(plain);
      if (text.empty()) break;
      text.remove_prefix(1);  // a character follows, or the string would have no end
      LIME_RETURN_IF_ERROR(Unescape(text, out));
    }
    return out;
  }

  // Behind a backslash.
  absl::Status Unescape(std::string_view& text, std::string& out) const {
    constexpr std::string_view kPlain = "\\'\"abfnrtv", kMeaning = "\\'\"\a\b\f\n\r\t\v";
    const char c = text.front();
    if (c >= '0' && c <= '7') return UnescapeCode(text, 0, 3, 8, out);
    if (c == 'x') return UnescapeCode(text, 2, 2, 16, out);
    if (c == 'u') return UnescapeCode(text, 4, 4, 16, out);
    if (c == 'U') return UnescapeCode(text, 8, 8, 16, out);
    if (c == 'N') return WrongAt(line_, "\"\\N\" is not supported; write the character itself");
    if (const size_t at = kPlain.find(c); at != kNone) {
      out.push_back(kMeaning[at]);
    } else if (c != '\n') {
      out.push_back('\\');
      return absl::OkStatus();  // the character itself follows
    }
    text.remove_prefix(1);
    return absl::OkStatus();
  }

  // A code of `fewest` to `most` digits, behind a letter unless `fewest` is 0.
  absl::Status UnescapeCode(std::string_view& text, size_t fewest, size_t most, int base, std::string& out) const {
    if (fewest > 0) text.remove_prefix(1);
    size_t length = 0;
    while (length < std::min(most, text.size()) && ParseInt(text.substr(length, 1), base).has_value()) ++length;
    const Int128 code = length == 0 ? -1 : ParseInt(text.substr(0, length), base).value_or(-1);
    if (length < fewest || code < 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      return WrongAt(line_, "a string has an escape that is no character; write the character itself");
    }
    AppendUtf8(static_cast<char32_t>(code), out);
    text.remove_prefix(length);
    return absl::OkStatus();
  }

  absl::Status ReadSymbol(std::string& open) {
    constexpr std::array<std::string_view, 26> kSymbols = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                                           "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto found = std::ranges::find_if(kSymbols, [this](std::string_view symbol) { return rest_.starts_with(symbol); });
    if (found == kSymbols.end()) {
      return WrongAt(line_, "\"", std::string(rest_.substr(0, BytesBefore(rest_, 1))),
                     "\" has no meaning here; remove it, or write it in quotes");
    }
    const char c = found->front();
    if (c == '(' || c == '[' || c == '{') open.push_back(c);
    if (c == ')' || c == ']' || c == '}') {
      const char opener = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (!open.ends_with(opener)) return WrongAt(line_, "\"", std::string(1, c), "\" closes no bracket; remove it, or open one before");
      open.pop_back();
    }
    Emit(TokenKind::kSymbol, std::string(*found));
    Skip(found->size());
    return absl::OkStatus();
  }

  using Int128 = __int128;

  const std::string source_;
  std::string_view rest_;  // of source_
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) {
  if (static_cast<Bytes>(source.size()) > kMaxTemplateBytes) {
    return Invalid("the chat template has ", source.size(), " bytes, the limit is ", kMaxTemplateBytes, "; shorten it");
  }
  if (!IsUtf8(source)) return Invalid("the chat template is not UTF-8; save it as UTF-8");
  return Lexer(WithPlainLineEnds(source)).Run();
}

}  // namespace lime::jinja
