#define PCRE2_CODE_UNIT_WIDTH 8
#include "coordinator/text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "coordinator/text/utf8.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr size_t kJitStackBytes = 16 << 20;

// PCRE2's \s takes U+180E, its \w lacks marks and its \d is wider: spell out the Unicode properties that Oniguruma uses.
constexpr std::string_view kSpaces = R"(\t-\r\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kWords = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc})";

// What stands in for the escape sequence \c, or "" where it is left as it is.
std::string EscapeSet(char c, bool in_class) {
  const std::string_view set = c == 's' || c == 'S' ? kSpaces : c == 'w' || c == 'W' ? kWords : "";
  const bool negated = c == 'S' || c == 'W';
  if (set.empty() || (negated && in_class)) return "";
  return in_class ? std::string(set) : absl::StrCat(negated ? "[^" : "[", Text(set), "]");
}

// Bytes at the beginning of `rest` that open a character class, a literal ']' behind the bracket included.
size_t ClassOpening(std::string_view rest) {
  size_t length = 1;
  if (rest.substr(length).starts_with("^")) ++length;
  if (rest.substr(length).starts_with("]")) ++length;
  return length;
}

// Rewrites \s, \S, \w and \W where that is possible (the negated ones only outside a class).
std::string Translate(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  size_t length = 0;
  for (size_t i = 0; i < pattern.size(); i += length) {
    const std::string_view rest = pattern.substr(i);
    length = 1;
    if (rest[0] == '\\' && rest.size() > 1) {
      length = 2;
      if (const std::string set = EscapeSet(rest[1], in_class); !set.empty()) {
        out.append(set);
        continue;
      }
    } else if (rest[0] == '[' && !in_class) {
      length = ClassOpening(rest);
      in_class = true;
    } else if (in_class && rest.starts_with("[:")) {
      length = std::min(rest.size(), rest.find(":]") + 2);
      if (length < 4) length = 2;  // no end
    } else if (rest[0] == ']') {
      in_class = false;
    }
    out.append(rest.substr(0, length));
  }
  return out;
}

std::string ErrorText(int code) {
  char buffer[256] = {};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof(buffer));
  return buffer;
}

// What one thread matches with. The JIT stack is shared by all patterns of the thread, one at a time.
class MatchState {
 public:
  MatchState()
      : context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr)),
        data_(pcre2_match_data_create(1, nullptr)) {
    pcre2_jit_stack_assign(context_, nullptr, stack_);
    pcre2_set_heap_limit(context_, kJitStackBytes / 1024);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;
  ~MatchState() {
    pcre2_match_data_free(data_);
    pcre2_jit_stack_free(stack_);
    pcre2_match_context_free(context_);
  }

  // PCRE2's return code; on a match, `range` is where.
  int Match(const pcre2_code* code, std::string_view text, size_t start, TextRange& range) {
    const auto limit = std::min<size_t>(10'000 + 16 * (text.size() - start), std::numeric_limits<uint32_t>::max());
    pcre2_set_match_limit(context_, static_cast<uint32_t>(limit));
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int rc = pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK, data_, context_);
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(data_);
    if (rc >= 0) range = {ovector[0], ovector[1]};
    return rc;
  }

 private:
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
  pcre2_match_data* data_;
};

}  // namespace

absl::StatusOr<Regex> Regex::CompileAs(std::string_view pattern, std::string_view translated, uint32_t options) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(absl::StrCat("regular expression of ", pattern.size(), " bytes; at most ", kMaxPatternBytes));
  }
  Regex regex{std::string(pattern)};
  int error = 0;
  PCRE2_SIZE offset = 0;
  const auto* source = reinterpret_cast<PCRE2_SPTR>(translated.data());
  pcre2_code* code = pcre2_compile(source, translated.size(), PCRE2_UTF | options, &error, &offset, nullptr);
  if (code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("regular expression \"", Text(pattern), "\" does not compile: ", ErrorText(error)));
  }
  regex.code_ = std::shared_ptr<pcre2_code>(code, pcre2_code_free);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is no JIT, pcre2_match interprets
  return regex;
}

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  return CompileAs(pattern, Translate(pattern), PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
}

absl::StatusOr<Regex> Regex::Literal(std::string_view literal) {
  return CompileAs(literal, literal, PCRE2_LITERAL);
}

absl::Status Regex::FindAll(std::string_view text, std::vector<TextRange>& matches) const {
  thread_local MatchState state;
  size_t start = 0;
  size_t last_end = std::string_view::npos;
  while (start <= text.size()) {
    TextRange match;
    const int rc = state.Match(code_.get(), text, start, match);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return absl::InvalidArgumentError(absl::StrCat("regular expression \"", pattern_, "\" failed: ", ErrorText(rc)));
    if (match.end < match.begin || match.begin < start) match = {start, start};  // \K and lookbehind tricks
    if (match.begin == match.end && match.begin == last_end) {
      if (start == text.size()) break;
      start += DecodeUtf8(text.substr(start)).length;
      continue;
    }
    matches.push_back(match);
    start = last_end = match.end;
  }
  return absl::OkStatus();
}

}  // namespace lime
