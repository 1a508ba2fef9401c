// The regular expressions of tokenizer files, run by PCRE2 with the meaning that the tokenizers library (Oniguruma) gives them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/status.h"

struct pcre2_real_code_8;

namespace lime {

// A piece of a text, in bytes.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

// Thread: any, once compiled.
class Regex {
 public:
  // `pattern` may come from a hostile file.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);

  // A pattern that matches `literal` and nothing else.
  static absl::StatusOr<Regex> Literal(std::string_view literal);

  // Appends the matches in `text` from left to right, without overlaps. An error when the pattern backtracks beyond a bound
  // that grows with the text. REQUIRES: `text` is well-formed UTF-8.
  absl::Status FindAll(std::string_view text, std::vector<TextRange>& matches) const;

 private:
  static absl::StatusOr<Regex> CompileAs(std::string_view pattern, std::string_view translated, uint32_t options);

  explicit Regex(std::string pattern) : pattern_(std::move(pattern)) {}

  std::string pattern_;  // as the file has it, for messages
  std::shared_ptr<pcre2_real_code_8> code_;
};

}  // namespace lime
