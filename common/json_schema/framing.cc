#include "common/json_schema/framing.h"

#include <utility>

namespace lime::json_schema {

Framing Framing::Text(std::string text) {
  return {.kind = Kind::kText, .text = std::move(text)};
}

Framing Framing::Sequence(std::vector<Framing> parts) {
  return {.kind = Kind::kSequence, .parts = std::move(parts)};
}

Framing Framing::OneOf(std::vector<Framing> parts) {
  return {.kind = Kind::kOneOf, .parts = std::move(parts)};
}

Framing Framing::Optional(Framing part) {
  Framing optional{.kind = Kind::kRepeat, .is_optional = true, .repeats = false};
  optional.parts.push_back(std::move(part));
  return optional;
}

Framing Framing::Repeat(Framing part, std::string between) {
  Framing repeat{.kind = Kind::kRepeat, .text = std::move(between)};
  repeat.parts.push_back(std::move(part));
  return repeat;
}

}  // namespace lime::json_schema
