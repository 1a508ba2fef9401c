#include "common/json_schema/dfa/regex_syntax.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "common/json_schema/dfa/char_dfa.h"

namespace lime::json_schema {
namespace {

using Set = std::vector<CodeRange>;

constexpr int kMaxDepth = 64;
constexpr int kMaxRepeats = 1000;

Set Digits() {
  return {{'0', '9'}};
}

Set WordCharacters() {
  return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
}

Set Spaces() {
  return {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}

Set LineEnds() {
  return {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
}

Set Sorted(Set set) {
  std::ranges::sort(set, {}, &CodeRange::first);
  Set sorted;
  for (const CodeRange& range : set) {
    if (!sorted.empty() && range.first <= sorted.back().last + 1) {
      sorted.back().last = std::max(sorted.back().last, range.last);
    } else {
      sorted.push_back(range);
    }
  }
  return sorted;
}

Set AllBut(const Set& set) {
  Set rest;
  uint32_t next = 0;
  for (const CodeRange& range : Sorted(set)) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) rest.push_back({next, kLastCodePoint});
  return rest;
}

class PatternParser {
 public:
  explicit PatternParser(std::string_view pattern) : codes_(CodePoints(pattern)) {}

  absl::StatusOr<PatternNode> Parse() {
    LIME_ASSIGN_OR_RETURN(PatternNode node, ParseEither());
    if (!AtEnd()) return Wrong("a \")\" that closes nothing");
    return node;
  }

 private:
  bool AtEnd() const { return at_ == codes_.size(); }
  uint32_t Peek() const { return AtEnd() ? 0 : codes_[at_]; }
  bool Next(uint32_t code) {
    if (AtEnd() || codes_[at_] != code) return false;
    ++at_;
    return true;
  }

  template <typename... What>
  absl::Status Wrong(const What&... what) const {
    return Invalid("has ", what..., " at character ", at_);
  }

  absl::StatusOr<PatternNode> ParseEither() {
    if (++depth_ > kMaxDepth) return Wrong("more than ", kMaxDepth, " groups inside each other");
    PatternNode either{.kind = PatternKind::kEither};
    do {
      LIME_ASSIGN_OR_RETURN(PatternNode all, ParseAll());
      either.parts.push_back(std::move(all));
    } while (Next('|'));
    --depth_;
    return either;
  }

  absl::StatusOr<PatternNode> ParseAll() {
    PatternNode all{.kind = PatternKind::kAll};
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      LIME_ASSIGN_OR_RETURN(PatternNode part, ParseRepeated());
      all.parts.push_back(std::move(part));
    }
    return all;
  }

  absl::StatusOr<PatternNode> ParseRepeated() {
    LIME_ASSIGN_OR_RETURN(PatternNode node, ParseAtom());
    const bool is_anchor = node.kind == PatternKind::kBegin || node.kind == PatternKind::kEnd;
    int min = 0, max = PatternNode::kNoMax;
    if (Next('+')) {
      min = 1;
    } else if (Next('?')) {
      max = 1;
    } else if (Peek() == '{' && !AtEnd()) {
      LIME_RETURN_IF_ERROR(ParseCounts(min, max));
    } else if (!Next('*')) {
      return node;
    }
    if (is_anchor) return Wrong("an anchor that is repeated");
    Next('?');  // lazy: the same strings
    PatternNode repeat{.kind = PatternKind::kRepeat, .min = min, .max = max};
    repeat.parts.push_back(std::move(node));
    return repeat;
  }

  absl::Status ParseCounts(int& min, int& max) {
    ++at_;
    const std::optional<int> low = ParseCount();
    std::optional<int> high = low;
    const bool has_comma = Next(',');
    if (has_comma) high = Peek() == '}' ? PatternNode::kNoMax : ParseCount();
    if (!low || !high || !Next('}') || (*high != PatternNode::kNoMax && *high < *low))
      return Wrong("a \"{\" that begins no number of repeats up to ", kMaxRepeats);
    min = *low;
    max = *high;
    return absl::OkStatus();
  }

  std::optional<int> ParseCount() {
    std::optional<int> count;
    for (; Peek() >= '0' && Peek() <= '9'; ++at_) {
      count = 10 * count.value_or(0) + static_cast<int>(Peek() - '0');
      if (*count > kMaxRepeats) return std::nullopt;
    }
    return count;
  }

  absl::StatusOr<PatternNode> ParseAtom() {
    if (Next('^')) return PatternNode{.kind = PatternKind::kBegin};
    if (Next('$')) return PatternNode{.kind = PatternKind::kEnd};
    if (Next('(')) return ParseGroup();
    PatternNode node{.kind = PatternKind::kSet};
    if (Next('.')) {
      node.set = AllBut(LineEnds());
    } else if (Next('[')) {
      LIME_ASSIGN_OR_RETURN(node.set, ParseClass());
    } else if (Next('\\')) {
      LIME_ASSIGN_OR_RETURN(node.set, ParseEscape(/*in_class=*/false));
    } else if (const uint32_t code = Peek(); code == '*' || code == '+' || code == '?' || code == '{') {
      return Wrong("a repeat of nothing");
    } else {
      node.set = {{code, code}};
      ++at_;
    }
    return node;
  }

  absl::StatusOr<PatternNode> ParseGroup() {
    if (Next('?') && !Next(':')) return Wrong("a group that is not regular (\"(?\" may only begin \"(?:\")");
    LIME_ASSIGN_OR_RETURN(PatternNode node, ParseEither());
    if (!Next(')')) return Wrong("a \"(\" without its \")\"");
    return node;
  }

  absl::StatusOr<Set> ParseClass() {
    const bool is_negated = Next('^');
    Set set;
    while (!Next(']')) {
      if (AtEnd()) return Wrong("a \"[\" without its \"]\"");
      LIME_ASSIGN_OR_RETURN(Set first, ParseClassPart());
      const bool is_range = Peek() == '-' && at_ + 1 < codes_.size() && codes_[at_ + 1] != ']';
      if (is_range) {
        ++at_;
        LIME_ASSIGN_OR_RETURN(const Set last, ParseClassPart());
        if (!IsOne(first) || !IsOne(last) || first[0].first > last[0].first) return Wrong("a range without order");
        first = {{first[0].first, last[0].first}};
      }
      set.insert(set.end(), first.begin(), first.end());
    }
    return is_negated ? AllBut(set) : Sorted(set);
  }

  static bool IsOne(const Set& set) { return set.size() == 1 && set[0].first == set[0].last; }

  absl::StatusOr<Set> ParseClassPart() {
    if (AtEnd()) return Wrong("a \"[\" without its \"]\"");
    if (Next('\\')) return ParseEscape(/*in_class=*/true);
    const uint32_t code = codes_[at_++];
    return Set{{code, code}};
  }

  absl::StatusOr<Set> ParseEscape(bool in_class) {
    if (AtEnd()) return Wrong("a \"\\\" without a character");
    const uint32_t code = codes_[at_++];
    switch (code) {
      case 'd':
        return Digits();
      case 'D':
        return AllBut(Digits());
      case 'w':
        return WordCharacters();
      case 'W':
        return AllBut(WordCharacters());
      case 's':
        return Spaces();
      case 'S':
        return AllBut(Spaces());
      case 't':
        return One('\t');
      case 'n':
        return One('\n');
      case 'v':
        return One('\v');
      case 'f':
        return One('\f');
      case 'r':
        return One('\r');
      case '0':
        return One(0);
      case 'x':
        return ParseHex(2);
      case 'u':
        return Next('{') ? ParseLongHex() : ParseHex(4);
      case 'b':
        if (in_class) return One('\b');
        break;
      default:
        if (code > 0x7F || !absl::ascii_isalnum(static_cast<unsigned char>(code))) return One(code);
    }
    return Wrong("an escape that is not supported");
  }

  static Set One(uint32_t code) { return {{code, code}}; }

  absl::StatusOr<Set> ParseHex(int digits) {
    uint32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      const uint32_t digit = Peek();
      if (digit > 0x7F || !absl::ascii_isxdigit(static_cast<unsigned char>(digit))) return Wrong("an escape without its digits");
      code = 16 * code + (digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
      if (code > kLastCodePoint) return Wrong("an escape above the last character");
      ++at_;
    }
    return One(code);
  }

  absl::StatusOr<Set> ParseLongHex() {
    int digits = 0;
    while (at_ + static_cast<size_t>(digits) < codes_.size() && codes_[at_ + static_cast<size_t>(digits)] != '}' && digits < 8) ++digits;
    if (digits == 0) return Wrong("an escape without its digits");
    LIME_ASSIGN_OR_RETURN(Set set, ParseHex(digits));
    if (!Next('}')) return Wrong("an escape without its \"}\"");
    return set;
  }

  const std::vector<uint32_t> codes_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<PatternNode> ParsePattern(std::string_view pattern) {
  return PatternParser(pattern).Parse();
}

}  // namespace lime::json_schema
