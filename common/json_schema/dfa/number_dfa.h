// Byte automata of numbers.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/json_schema/dfa/byte_dfa.h"

namespace lime::json_schema {

// A number of JSON, exactly.
struct Decimal {
  bool is_negative = false;
  std::string whole = "0";  // without leading zeros
  std::string fraction;     // without trailing zeros

  // REQUIRES: `number` is a number of JSON that a double or a 64-bit integer can hold.
  static Decimal Parse(std::string_view number);

  bool IsZero() const { return whole == "0" && fraction.empty(); }
  bool IsWhole() const { return fraction.empty(); }
};

// < 0, 0, > 0.
int Compare(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool is_exclusive = false;
};

// The numbers of a schema. Bounds and multiples are compared with the text of the number, so they
// are exact.
struct NumberRange {
  bool is_integer = false;
  std::optional<NumberBound> min, max;
  int64_t multiple_of = 0;  // 0: any number; otherwise only integers

  bool Contains(const Decimal& number) const;
};

// Without a range: up to 15 digits before and after the point and two of the exponent; integers up
// to 18 digits. With a range: no exponent, and 15 digits together (integers: 18), or as many as the
// bounds have, up to 19. So a double or a 64-bit integer holds them. An automaton that accepts
// nothing (start() == kDead) if the range has no such number.
absl::StatusOr<ByteDfaPtr> NumberDfa(const NumberRange& range, const ByteSet& writable);

}  // namespace lime::json_schema
