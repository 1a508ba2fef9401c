// Text around the values of schemas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lime::json_schema {

// An answer or a part of it: values with text around them. Parts that begin alike are no problem.
struct Framing {
  enum class Kind : uint8_t { kText, kValue, kScalar, kSequence, kOneOf, kRepeat };

  Kind kind = Kind::kSequence;
  std::string text;  // of kText; of kRepeat, between two times
  int id = -1;       // of kValue and kScalar; from a GrammarBuilder
  std::vector<Framing> parts;
  bool is_optional = false, repeats = true;  // of kRepeat

  // Byte for byte. Special tokens whose text it holds may write it.
  static Framing Text(std::string text);
  // All of them, in their order.
  static Framing Sequence(std::vector<Framing> parts);
  // REQUIRES: one part or more.
  static Framing OneOf(std::vector<Framing> parts);
  // Once, or not at all.
  static Framing Optional(Framing part);
  // Once or more, with `between` between two times.
  static Framing Repeat(Framing part, std::string between);
};

}  // namespace lime::json_schema
