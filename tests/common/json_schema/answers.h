// What the tests of schemas share.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "common/json_schema/grammar_builder.h"
#include "common/json_schema/matcher.h"

namespace lime::json_schema {

// "complete", "begins" (an answer begins so), "refused at N" (with byte N), or the error of the
// schema. The text is matched byte by byte.
inline std::string Try(const GrammarPtr& grammar, std::string_view text) {
  Matcher matcher(grammar);
  for (size_t i = 0; i < text.size(); ++i) {
    if (!matcher.Advance(text.substr(i, 1))) return "refused at " + std::to_string(i);
    if (matcher.LeastBytes() >= kEndless) return "has no end at " + std::to_string(i);
  }
  return matcher.IsComplete() ? "complete" : "begins";
}

inline std::string Error(std::string_view schema) {
  const absl::StatusOr<GrammarPtr> grammar = CompileAnswer(std::string(schema));
  return grammar.ok() ? "" : std::string(grammar.status().message());
}

inline std::string Try(std::string_view schema, std::string_view text) {
  const absl::StatusOr<GrammarPtr> grammar = CompileAnswer(std::string(schema));
  return grammar.ok() ? Try(*grammar, text) : std::string(grammar.status().message());
}

}  // namespace lime::json_schema
