// Small vocabularies for tests.
#pragma once

#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "common/json_schema/vocabulary.h"

namespace lime::json_schema {

inline constexpr const char* kJsonTokens[] = {
    "{\"",      "\":",       "\": ",  "\", \"", "\"}",      "\"},",   "},",   "}}",       "]}",     "]]",
    "[[",       "[{\"",      ", ",    ",\n",    ": {\"",    "\": \"", "true", "false",    "null",   "nul",
    "\n  ",     "\n    ",    " \"",   "  ",     " {",       "ab",     "abc",  "\xC3\xA9", "\xA9\"", "\xA9\"}",
    "\xC3",     "12",        "1,",    "-1",     ".5",       "0]",     "7}",   "00",       "\"a\"",  "\"a\": ",
    "\"kind",   "kind\":",   "\\u00", "d83d",   "\\u",      "\\\"",   "\\\\", "\"\"",     "\"\":",  "\xF0\x9F\x98\x80",
    "\xF0\x9F", "\x98\x80x", "b\",",  "x\"]",   "aaaaaaaa", "bbbb",   "e1",   "E+",       "null,",  "true]",
    "{}",       "[]",        "[1",    "1]",     "{\n",      "}\n",    "\"}\n"};

// All bytes for which `has_byte` is true, the tokens of kJsonTokens that consist of these bytes,
// then "</s>" (an end) and "<call>" (special).
template <typename HasByte>
VocabularyPtr SmallVocabulary(const HasByte& has_byte) {
  std::vector<TokenText> tokens;
  tokens.reserve(256 + std::size(kJsonTokens) + 4);
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back({std::string(1, static_cast<char>(byte)), has_byte(byte) ? TokenUse::kText : TokenUse::kNever});
  for (const char* text : kJsonTokens) tokens.push_back({text});
  tokens.push_back({"ab"});  // twice
  tokens.push_back({""});
  tokens.push_back({"</s>", TokenUse::kEnd});
  tokens.push_back({"<call>", TokenUse::kSpecial});
  return std::make_shared<Vocabulary>(tokens);
}

inline VocabularyPtr SmallVocabulary() {
  return SmallVocabulary([](int) { return true; });
}

}  // namespace lime::json_schema
