// The regular expressions of tokenizer files. As in the tokenizers library, Oniguruma runs them, in
// its own dialect.
//
// Oniguruma has the tables of Unicode 14, or of the release that the system has. SpellOutClasses()
// replaces them by the tables of unicode_data.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/status.h"

struct re_pattern_buffer;

namespace lime {

// Part of a text, in bytes.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

// Thread: any, once compiled.
class Regex {
 public:
  // `pattern` may come from a hostile file.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);

  // A pattern that matches only `literal`. An empty literal matches between all characters, as an
  // empty expression does.
  static absl::StatusOr<Regex> Literal(std::string_view literal);

  // Appends the matches in `text` from left to right, without overlaps. An error if the pattern
  // backtracks more than a bound that grows with the text. REQUIRES: `text` is well-formed UTF-8.
  absl::Status FindAll(std::string_view text, std::vector<TextRange>& matches) const;

 private:
  explicit Regex(std::string_view pattern) : pattern_(pattern) {}

  void FindLiteral(std::string_view text, std::vector<TextRange>& matches) const;

  std::string pattern_;                      // as written in the file
  std::shared_ptr<re_pattern_buffer> code_;  // null: pattern_ is a literal
};

}  // namespace lime
