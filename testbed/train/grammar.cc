#include "testbed/train/grammar.h"

#include <cctype>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "planner/base/check.h"

namespace lime::train {
namespace {

constexpr int kMaxDepth = 40;
constexpr int kMaxRedraws = 50;

// Position of the bracket that closes the one at `open`.
size_t Closing(absl::string_view text, size_t open) {
  const char in = text[open], out = in == '[' ? ']' : '}';
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == in) ++depth;
    if (text[i] == out && --depth == 0) return i;
  }
  return absl::string_view::npos;
}

// "x|[y|z]|w" -> "x", "[y|z]", "w".
std::vector<absl::string_view> Alternatives(absl::string_view text) {
  std::vector<absl::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == '{') ++depth;
    if (text[i] == ']' || text[i] == '}') --depth;
    if (text[i] == '|' && depth == 0) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  parts.push_back(text.substr(begin));
  return parts;
}

using Rules = std::map<std::string, std::vector<std::string>, std::less<>>;
using Aliases = std::map<std::string, std::string, std::less<>>;

// One expansion: the variables of one text.
class Expansion {
 public:
  Expansion(const Rules& rules, uint64_t seed) : rules_(rules), rng_(seed) {}

  std::string Rule(absl::string_view call, const Aliases& outer, int depth) {
    LIME_CHECK_LT(depth, kMaxDepth) << "the grammar calls itself without end in " << call;
    absl::string_view name = call.substr(0, call.find('('));
    const auto rule = rules_.find(name);
    LIME_CHECK(rule != rules_.end()) << "no rule " << name;
    const std::string& production = rule->second[rng_.Below(static_cast<int>(rule->second.size()))];
    if (name.size() == call.size()) return Text(production, outer, depth + 1);
    Aliases aliases;
    const char* parameter[] = {"x", "y", "z"};
    int n = 0;
    for (absl::string_view argument : absl::StrSplit(call.substr(name.size() + 1, call.size() - name.size() - 2), ',')) {
      aliases[parameter[n++]] = Resolve(argument, outer);
    }
    return Text(production, aliases, depth + 1);
  }

 private:
  std::string Text(absl::string_view text, const Aliases& aliases, int depth) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '[') {
        const size_t end = Closing(text, i);
        const auto parts = Alternatives(text.substr(i + 1, end - i - 1));
        out += Text(parts[rng_.Below(static_cast<int>(parts.size()))], aliases, depth);
        i = end;
      } else if (text[i] == '{') {
        const size_t end = Closing(text, i);
        out += Variable(text.substr(i + 1, end - i - 1), aliases, depth);
        i = end;
      } else if (text[i] == '#') {
        const size_t end = text.find('#', i + 1);
        out += Rule(text.substr(i + 1, end - i - 1), aliases, depth);
        i = end;
      } else {
        out += text[i];
      }
    }
    return out;
  }

  std::string Variable(absl::string_view body, const Aliases& aliases, int depth) {
    if (const size_t equals = body.find('='); equals != absl::string_view::npos) {
      Bind(Resolve(body.substr(0, equals), aliases), body.substr(equals + 1), aliases, depth);
      return "";
    }
    const bool capital = absl::ConsumePrefix(&body, "^");
    const auto value = variables_.find(Resolve(body, aliases));
    LIME_CHECK(value != variables_.end()) << "no variable " << body;
    std::string text = value->second;
    if (capital && !text.empty()) text[0] = absl::ascii_toupper(text[0]);
    return text;
  }

  void Bind(const std::string& name, absl::string_view text, const Aliases& aliases, int depth) {
    std::string drawn;
    std::vector<std::string> parts;
    for (int i = 0; i < kMaxRedraws; ++i) {
      drawn = Text(text, aliases, depth);
      parts = absl::StrSplit(drawn, ';');
      if (!IsUsed(name, parts[0])) break;
    }
    variables_[name] = parts[0];
    for (size_t i = 1; i < parts.size(); ++i) {
      const std::pair<std::string, std::string> field = absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
      variables_[absl::StrCat(name, ".", field.first)] = field.second;
    }
  }

  bool IsUsed(const std::string& name, const std::string& value) const {
    for (const auto& [other, text] : variables_) {
      if (other != name && other.find('.') == std::string::npos && text == value) return true;
    }
    return false;
  }

  // "x.he" -> "b.he" inside a rule called with b.
  static std::string Resolve(absl::string_view name, const Aliases& aliases) {
    const absl::string_view head = name.substr(0, name.find('.'));
    const auto alias = aliases.find(head);
    if (alias == aliases.end()) return std::string(name);
    return absl::StrCat(alias->second, name.substr(head.size()));
  }

  const Rules& rules_;
  CounterRng rng_;
  std::map<std::string, std::string, std::less<>> variables_;
};

// Every bracket closes and every called rule exists.
absl::Status CheckProduction(const Rules& rules, absl::string_view rule, absl::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if ((text[i] == '[' || text[i] == '{') && Closing(text, i) == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("grammar: a bracket is not closed in rule ", rule, ": ", text));
    }
    if (text[i] != '#') continue;
    const size_t end = text.find('#', i + 1);
    if (end == absl::string_view::npos)
      return absl::InvalidArgumentError(absl::StrCat("grammar: a # is not closed in rule ", rule, ": ", text));
    const absl::string_view call = text.substr(i + 1, end - i - 1), name = call.substr(0, call.find('('));
    if (rules.find(name) == rules.end())
      return absl::InvalidArgumentError(absl::StrCat("grammar: rule ", rule, " calls ", name, ", which does not exist"));
    i = end;
  }
  return absl::OkStatus();
}

// Behind a quotation that ends in ! or ?, these words may go on with its sentence ("Look!" said
// Tom), so the grammar writes their case itself.
bool MayFollowQuote(absl::string_view rest) {
  const absl::string_view word = rest.substr(0, rest.find_first_of(" ,.;!?\n"));
  for (absl::string_view verb : {"said", "asked", "cried", "shouted", "thought", "he", "she", "it", "they"}) {
    if (word == verb) return true;
  }
  return false;
}

bool IsVowel(char c) {
  return absl::string_view("aeiouAEIOU").find(c) != absl::string_view::npos;
}

}  // namespace

uint64_t CounterRng::Next() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

absl::StatusOr<Grammar> Grammar::Parse(absl::string_view text) {
  Rules rules;
  std::vector<std::string>* rule = nullptr;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view body = absl::StripAsciiWhitespace(line);
    if (body.empty() || body[0] == '%') continue;
    if (line[0] != ' ') {
      const auto [entry, fresh] = rules.try_emplace(std::string(absl::StripSuffix(body, ":")));
      if (!fresh) return absl::InvalidArgumentError(absl::StrCat("grammar: rule ", entry->first, " comes twice"));
      rule = &entry->second;
    } else if (rule == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("grammar: a production comes before any rule: ", body));
    } else {
      rule->emplace_back(body);
    }
  }
  for (const auto& [name, productions] : rules) {
    if (productions.empty()) return absl::InvalidArgumentError(absl::StrCat("grammar: rule ", name, " has no production"));
    for (const std::string& production : productions) {
      if (absl::Status status = CheckProduction(rules, name, production); !status.ok()) return status;
    }
  }
  return Grammar(std::move(rules));
}

std::string Grammar::Expand(absl::string_view rule, uint64_t seed) const {
  return Polish(Expansion(rules_, seed).Rule(rule, {}, 0));
}

std::string Polish(absl::string_view text) {
  std::string out;
  bool capital = true, quoted = false, after_quote = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '`') {
      capital = after_quote = false;
      continue;
    }
    const char c = text[i] == '~' ? '\n' : text[i];
    const char last = out.empty() ? '\n' : out.back();
    if (c == ' ' && (last == ' ' || last == '\n')) continue;
    if (last == ' ' && absl::string_view("\n.,!?").find(c) != absl::string_view::npos) out.pop_back();
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      // "a apple" -> "an apple", with the article already written.
      const size_t n = out.size();
      if (IsVowel(c) && n >= 2 && last == ' ' && (out[n - 2] == 'a' || out[n - 2] == 'A') &&
          (n == 2 || !std::isalpha(static_cast<unsigned char>(out[n - 3])))) {
        out.back() = 'n';
        out += ' ';
      }
      const bool raise = capital && !(after_quote && MayFollowQuote(text.substr(i)));
      out += raise ? absl::ascii_toupper(c) : c;
      capital = after_quote = false;
      continue;
    }
    if (c == '"') {
      quoted = !quoted;
      // A quotation that goes on behind a comma keeps the case that the grammar gave it.
      capital = quoted ? !(last == ' ' && out.size() > 1 && out[out.size() - 2] == ',') : last != ',';
      after_quote = !quoted && (last == '!' || last == '?');
    } else if (c == '.' || c == '!' || c == '?' || c == '\n') {
      capital = true;
    }
    out += c;
  }
  while (!out.empty() && (out.back() == ' ' || out.back() == '\n')) out.pop_back();
  return out;
}

}  // namespace lime::train
