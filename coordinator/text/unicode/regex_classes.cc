#include "coordinator/text/unicode/regex_classes.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/text/unicode/unicode_data.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr size_t kMaxSpelledBytes = 4 << 20;
constexpr size_t kMaxNameBytes = 64;
constexpr char32_t kLastCode = 0x10FFFF;

std::string SpellRanges(CodeSet set) {
  std::string out;
  for (const CodeRange& range : set) {
    absl::StrAppend(&out, "\\x{", absl::Hex(uint32_t{range.first}), "}");
    if (range.last > range.first) absl::StrAppend(&out, "-\\x{", absl::Hex(uint32_t{range.last}), "}");
  }
  return out;
}

std::string SpellSet(const std::string& ranges, bool negated) {
  return absl::StrCat(negated ? "[^" : "[", ranges, "]");
}

// Outside a class, Oniguruma's Word has six more characters, because it uses its own table for
// Latin-1 there.
std::string WordRanges(bool in_class) {
  return absl::StrCat(in_class ? "" : R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})", SpellRanges(GetCodeSet("Word")));
}

// The ranges of \w, \s or \d.
std::string EscapeRanges(char letter, bool in_class) {
  switch (letter) {
    case 's':
      return SpellRanges(GetCodeSet("Space"));
    case 'd':
      return SpellRanges(GetCodeSet("Digit"));
    default:
      return WordRanges(in_class);
  }
}

// The complement of `set`, for use in a class. A negated class would do, but Oniguruma misreads it
// if the set has all of Latin-1.
std::string SpellComplement(CodeSet set) {
  std::vector<CodeRange> others;
  char32_t next = 0;
  for (const CodeRange& range : set) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCode) others.push_back({next, kLastCode});
  return others.empty() ? "[a&&b]" : SpellSet(SpellRanges(others), false);
}

// The set for \p{name}, or for its negation.
std::string SpellProperty(CodeSet set, bool negated, bool in_class) {
  if (negated && in_class) return SpellComplement(set);
  return SpellSet(set.data() == GetCodeSet("Word").data() ? WordRanges(in_class) : SpellRanges(set), negated);
}

// [[:punct:]] includes the symbols; \p{Punct} does not.
std::optional<std::string> PosixRanges(std::string_view name) {
  for (const std::string_view known :
       {"alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "xdigit", "word"}) {
    if (name != known) continue;
    return absl::StrCat(SpellRanges(GetCodeSet(known)), known == "punct" ? SpellRanges(GetCodeSet("Symbol")) : "");
  }
  return std::nullopt;
}

// Reads a pattern once, from left to right. Copies everything that it does not know.
class Speller {
 public:
  explicit Speller(std::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Run() {
    const std::string_view pattern = rest_;
    while (!rest_.empty()) {
      if (rest_[0] == '\\') {
        Escape();
      } else if (depth_ > 0) {
        InClass();
      } else {
        LIME_RETURN_IF_ERROR(OutsideClass());
      }
      if (other_meaning_) return std::string(pattern);
      if (out_.size() > kMaxSpelledBytes) {
        return Invalid("regular expression \"", Text(pattern.substr(0, 100)), "\" holds too many classes: the limit is ", kMaxSpelledBytes,
                       " bytes when they are spelled out");
      }
    }
    return std::move(out_);
  }

 private:
  void Copy(size_t bytes) {
    out_.append(rest_.substr(0, bytes));
    rest_.remove_prefix(std::min(bytes, rest_.size()));
  }

  void Replace(size_t bytes, std::string_view by) {
    out_.append(by);
    rest_.remove_prefix(bytes);
  }

  // A set in which the other case of letters is not added, although the pattern ignores case.
  std::string Plain(const std::string& set) const { return ignores_case_ && depth_ == 0 ? absl::StrCat("(?-i:", set, ")") : set; }

  void Escape() {
    const char letter = rest_.size() > 1 ? rest_[1] : '\0';
    switch (letter) {
      case 'p':
      case 'P':
        return Property();
      case 'w':
      case 's':
      case 'd':
        return Replace(2, Plain(SpellSet(EscapeRanges(letter, depth_ > 0), false)));
      case 'W':
      case 'S':
      case 'D':
        return Replace(2, Plain(SpellSet(EscapeRanges(static_cast<char>(letter - 'A' + 'a'), depth_ > 0), true)));
      case 'b':
      case 'B':
        return depth_ > 0 ? Copy(2) : Boundary(letter == 'B');
      case 'c':
        return Copy(3);  // a control character; what follows is no syntax
      case 'C':
      case 'M':
        return Copy(4);
      default:
        return Copy(2);
    }
  }

  // Handles \p{name}, \p{^name} and \P{name}.
  void Property() {
    const size_t end = rest_.substr(0, kMaxNameBytes).find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || end == std::string_view::npos) return Copy(2);
    std::string_view name = rest_.substr(3, end - 3);
    bool negated = rest_[1] == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const std::optional<CodeSet> set = FindCodeSet(name);
    if (!set.has_value() || set->empty()) return Copy(end + 1);
    Replace(end + 1, Plain(SpellProperty(*set, negated, depth_ > 0)));
  }

  // Handles \b and \B: between a word character and another one, or not.
  void Boundary(bool negated) {
    const std::string word = SpellSet(EscapeRanges('w', false), false);
    const std::string before = absl::StrCat("(?<=", word, ")"), behind = absl::StrCat("(?=", word, ")");
    const std::string not_before = absl::StrCat("(?<!", word, ")"), not_behind = absl::StrCat("(?!", word, ")");
    const std::string_view at_end = negated ? behind : not_behind, at_begin = negated ? not_behind : behind;
    Replace(2, absl::StrCat(ignores_case_ ? "(?-i:" : "(?:", before, Text(at_end), "|", not_before, Text(at_begin), ")"));
  }

  void InClass() {
    if (rest_[0] == ']') {
      --depth_;
      return Copy(1);
    }
    if (rest_[0] != '[') return Copy(1);
    if (!PosixBracket()) OpenClass();
  }

  // Handles [:name:] and [:^name:].
  bool PosixBracket() {
    const size_t end = rest_.substr(0, kMaxNameBytes).find(":]");
    if (!rest_.starts_with("[:") || end == std::string_view::npos || end < 2) return false;
    std::string_view name = rest_.substr(2, end - 2);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    const std::optional<std::string> ranges = PosixRanges(name);
    if (!ranges.has_value()) return false;
    Replace(end + 2, SpellSet(*ranges, negated));
    return true;
  }

  // A ']' directly after the opening bracket is a character of the class.
  void OpenClass() {
    ++depth_;
    Copy(rest_.starts_with("[^") ? 2 : 1);
    if (rest_.starts_with(']')) Copy(1);
  }

  absl::Status OutsideClass() {
    if (rest_[0] == '[') {
      OpenClass();
    } else if (rest_.starts_with("(?#")) {
      Comment();
    } else if (rest_.starts_with("(?{") || rest_.starts_with("(*")) {
      return absl::UnimplementedError("regular expressions with callouts, \"(?{\" or \"(*\", are not supported");
    } else {
      if (rest_.starts_with("(?")) Options();
      Copy(1);
    }
    return absl::OkStatus();
  }

  void Comment() {
    size_t end = 0;
    while (end < rest_.size() && rest_[end] != ')') end += rest_[end] == '\\' ? 2 : 1;
    Copy(end + 1);
  }

  // Records the options of "(?imx-i)" or "(?i:...)".
  void Options() {
    for (const char c : rest_.substr(2)) {
      if (c == 'i') ignores_case_ = true;
      if (std::string_view("xWDSPy").find(c) != std::string_view::npos) other_meaning_ = true;
      if (std::string_view("imxWDSPyaILC-").find(c) == std::string_view::npos) return;
    }
  }

  std::string_view rest_;
  std::string out_;
  int depth_ = 0;  // nesting of classes
  // The pattern ignores case from here on, or did in an earlier group.
  bool ignores_case_ = false;
  // Options give names of classes another meaning.
  bool other_meaning_ = false;
};

}  // namespace

absl::StatusOr<std::string> SpellOutClasses(std::string_view pattern) {
  return Speller(pattern).Run();
}

}  // namespace lime
