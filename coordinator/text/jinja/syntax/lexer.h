// A chat template as tokens, with white space removed as Jinja's trim_blocks and lstrip_blocks say.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/base/status.h"

namespace lime::jinja {

enum class TokenKind : uint8_t {
  kText,         // outside of tags
  kOutputBegin,  // {{
  kOutputEnd,    // }}
  kTagBegin,     // {%
  kTagEnd,       // %}
  kName,
  kString,  // without quotes and escapes
  kInteger,
  kFloat,
  kSymbol,  // operators and brackets
  kEnd,     // of the template
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;

  bool Is(TokenKind other, std::string_view words) const { return kind == other && text == words; }
  bool IsSymbol(std::string_view symbol) const { return Is(TokenKind::kSymbol, symbol); }
  bool IsName(std::string_view name) const { return Is(TokenKind::kName, name); }
};

// Comments are left out, and the content of {% raw %} is text. The last token is kEnd. An error is
// a sentence that names the line.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

// The error of a template at a line. The words together say what is wrong and what to do.
template <typename... What>
absl::Status WrongAt(int line, const What&... what) {
  return Invalid("line ", line, " of the chat template: ", what...);
}

}  // namespace lime::jinja
