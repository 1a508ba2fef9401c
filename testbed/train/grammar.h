// A small text grammar: named rules, random choice, and variables that keep a story consistent.
//
//   tale:
//     {a=#hero#}{toy=[ball|kite]}{a} had a {toy}. #glad(a)# [{a.he} played all day.|]
//
// A line without indentation ends in ':' and opens a rule; each indented line is one production of
// this rule. A production may contain
//   [x|y|]        one of the alternatives, which nest and may be empty
//   #rule#        a random production of the rule
//   #rule(a,b)#   the same, where {x...} stands for {a...} and {y...} for {b...} inside the rule
//   {v=text}      expands `text` and remembers it as v, printing nothing; drawn again while another variable has the same value
//   {v} {v.he}    the value of v, or of a field of v; {^v} begins with a capital
// A remembered text "Ruby;he=she;him=her" has the value "Ruby" and the fields he and him.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lime::train {

// Counter-based random numbers: number `n` of a stream depends on (seed, n) alone, on every
// machine.
class CounterRng {
 public:
  explicit CounterRng(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  // Uniform in [0, n), for n far below 2^32.
  int Below(int n) { return static_cast<int>((Next() >> 32) * static_cast<uint64_t>(n) >> 32); }

 private:
  uint64_t state_;
};

class Grammar {
 public:
  // Rejects a line outside any rule, a rule that comes twice, a production with unbalanced brackets,
  // and a call of a missing rule.
  static absl::StatusOr<Grammar> Parse(absl::string_view text);

  // One random text of `rule`, with single spaces, sentence capitals and correct "a"/"an".
  // Aborts on a variable without a value: that is a bug in the grammar, and a test over many seeds
  // finds it.
  std::string Expand(absl::string_view rule, uint64_t seed) const;

 private:
  using Rules = std::map<std::string, std::vector<std::string>, std::less<>>;
  explicit Grammar(Rules rules) : rules_(std::move(rules)) {}
  Rules rules_;
};

// Joins runs of spaces, removes spaces at line ends, begins sentences with a capital, writes "an"
// before a vowel. A line break is written as ~; a letter behind ` keeps its case.
std::string Polish(absl::string_view text);

}  // namespace lime::train
