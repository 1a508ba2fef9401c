// Python's operators on values. What Python refuses with an exception is an error of the Rendering,
// and the result means nothing then.
#pragma once

#include <optional>
#include <vector>

#include "coordinator/text/jinja/values/rendering.h"

namespace lime::jinja {

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,       // always a float
  kFloorDivide,  // towards minus infinity
  kModulo,       // has the sign of the divisor; on a string it formats
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

bool IsTrue(const Value& value);

// Of all operators before kEqual.
Value Calculate(Rendering& rendering, Operator op, const Value& left, const Value& right);
Value Negative(Rendering& rendering, const Value& value);
Value Positive(Rendering& rendering, const Value& value);

// Of the others.
bool Compare(Rendering& rendering, Operator op, const Value& left, const Value& right);
bool AreEqual(Rendering& rendering, const Value& left, const Value& right);
bool IsLess(Rendering& rendering, const Value& left, const Value& right);

// What a `for` goes through: characters, items, keys. An iterator has none afterwards. An error for
// what has none.
std::vector<Value> Iterate(Rendering& rendering, const Value& value);
bool IsIterable(const Value& value);

// Nothing for a value without a length.
std::optional<int64_t> LengthOf(const Value& value);

// Null if there is none.
const Value* FindKey(Rendering& rendering, const Dict& dict, const Value& key);
// Adds a key, or replaces its value. An error for a key that Python cannot hash.
void SetKey(Rendering& rendering, Dict& dict, const Value& key, const Value& value);
bool IsHashable(Rendering& rendering, const Value& value);

// value[key], without attributes. Nothing if there is none.
std::optional<Value> FindItem(Rendering& rendering, const Value& value, const Value& key);
// value[start:stop:step]; none where a bound is left out.
Value SliceOf(Rendering& rendering, const Value& value, const Value& start, const Value& stop, const Value& step);

// A string as HTML writes it, unless it is markup already. The result is markup.
Value Escaped(Rendering& rendering, const Value& value);

}  // namespace lime::jinja
