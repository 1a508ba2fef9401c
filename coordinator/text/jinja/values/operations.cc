#include "coordinator/text/jinja/values/operations.h"

#include <algorithm>
#include <cmath>
#include <compare>

#include "coordinator/text/jinja/values/format.h"
#include "coordinator/text/jinja/values/printing.h"
#include "coordinator/text/jinja/values/python_text.h"
#include "planner/base/strings.h"

namespace lime::jinja {
namespace {

const char* Symbol(Operator op) {
  constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSymbols[static_cast<int>(op)];
}

Value Refuse(Rendering& rendering, Operator op, const Value& left, const Value& right) {
  for (const Value& side : {left, right}) {
    if (side.IsUndefined())
      return rendering.Fail(NameOf(side), " is undefined and cannot be used with \"", Symbol(op), "\"; give it a value");
  }
  return rendering.Fail("\"", Symbol(op), "\" does not work on ", TypeName(left), " and ", TypeName(right), "; convert one of them");
}

Value TooLarge(Rendering& rendering) {
  return rendering.Fail("an integer is larger than 127 bits; use smaller numbers");
}

// `value` is written by what computes `overflow`.
Value Checked(Rendering& rendering, bool overflow, const Int& value) {
  return overflow ? TooLarge(rendering) : Value::Integer(value);
}

Int FloorDivide(Int left, Int right) {
  const Int quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

// Python's division of floats: the rest has the sign of the divisor, and the quotient is that of
// what the rest leaves, so that 2.5 // 0.1 is 24.
struct FloatDivision {
  double quotient;
  double rest;
};

FloatDivision Divide(double left, double right) {
  double rest = std::fmod(left, right), quotient = (left - rest) / right;
  if (rest != 0 && (rest < 0) != (right < 0)) {
    rest += right;
    quotient -= 1;
  }
  if (rest == 0) rest = std::copysign(0.0, right);
  if (quotient == 0) return {std::copysign(0.0, left / right), rest};
  const double whole = std::floor(quotient);
  return {quotient - whole > 0.5 ? whole + 1 : whole, rest};
}

// The order of an integer and a float, without rounding the integer.
std::partial_ordering Order(Int left, double right) {
  constexpr double kLimit = 0x1p127;  // beyond all integers
  if (!(std::fabs(right) < kLimit)) return 0.0 <=> right;
  const double whole = std::trunc(right);
  const auto order = left <=> static_cast<Int>(whole);
  return std::is_neq(order) ? order : whole <=> right;
}

// REQUIRES: both are numbers.
std::partial_ordering Order(const Value& left, const Value& right) {
  if (left.IsIntegral() && right.IsIntegral()) return left.AsInt() <=> right.AsInt();
  if (left.IsIntegral()) return Order(left.AsInt(), right.real);
  if (right.IsIntegral()) {
    const std::partial_ordering order = Order(right.AsInt(), left.real);
    if (std::is_lt(order)) return std::partial_ordering::greater;
    return std::is_gt(order) ? std::partial_ordering::less : order;
  }
  return left.real <=> right.real;
}

Value IntPower(Rendering& rendering, Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) return rendering.Fail("0 has no negative power; check the exponent");
    return Value::Real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1 || base == -1) return Value::Integer(exponent == 0 ? 1 : exponent % 2 == 0 ? base * base : base);
  Int value = 1;
  for (; exponent > 0; --exponent) {  // at most 127 times
    if (__builtin_mul_overflow(value, base, &value)) return TooLarge(rendering);
  }
  return Value::Integer(value);
}

Value CalculateInts(Rendering& rendering, Operator op, Int left, Int right) {
  Int value = 0;
  const bool divides = op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && right == 0) return rendering.Fail("a number is divided by 0; test the divisor first");
  // The one quotient that does not fit.
  if (divides && right == -1)
    return op == Operator::kModulo   ? Value::Integer(0)
           : op == Operator::kDivide ? Value::Real(-static_cast<double>(left))
                                     : Checked(rendering, __builtin_sub_overflow(Int{0}, left, &value), value);
  switch (op) {
    case Operator::kAdd:
      return Checked(rendering, __builtin_add_overflow(left, right, &value), value);
    case Operator::kSubtract:
      return Checked(rendering, __builtin_sub_overflow(left, right, &value), value);
    case Operator::kMultiply:
      return Checked(rendering, __builtin_mul_overflow(left, right, &value), value);
    case Operator::kDivide:
      return Value::Real(static_cast<double>(left) / static_cast<double>(right));
    case Operator::kFloorDivide:
      return Value::Integer(FloorDivide(left, right));
    case Operator::kModulo:
      return Value::Integer(left - FloorDivide(left, right) * right);
    default:
      return IntPower(rendering, left, right);
  }
}

Value DoublePower(Rendering& rendering, double base, double exponent) {
  if (base == 0 && exponent < 0) return rendering.Fail("0 has no negative power; check the exponent");
  if (base < 0 && std::isfinite(base) && std::isfinite(exponent) && exponent != std::trunc(exponent)) {
    return rendering.Fail("a negative number has no power that is no integer; check the exponent");
  }
  const double power = std::pow(base, exponent);
  if (std::isinf(power) && std::isfinite(base) && std::isfinite(exponent)) {
    return rendering.Fail("a power is larger than a float can be; use smaller numbers");
  }
  return Value::Real(power);
}

Value CalculateDoubles(Rendering& rendering, Operator op, double left, double right) {
  const bool divides = op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && right == 0) return rendering.Fail("a number is divided by 0; test the divisor first");
  switch (op) {
    case Operator::kAdd:
      return Value::Real(left + right);
    case Operator::kSubtract:
      return Value::Real(left - right);
    case Operator::kMultiply:
      return Value::Real(left * right);
    case Operator::kDivide:
      return Value::Real(left / right);
    case Operator::kFloorDivide:
      return Value::Real(Divide(left, right).quotient);
    case Operator::kModulo:
      return Value::Real(Divide(left, right).rest);
    default:
      return DoublePower(rendering, left, right);
  }
}

Value Join(Rendering& rendering, const Value& left, const Value& right) {
  const bool is_markup = left.is_markup || right.is_markup;
  const Value a = is_markup ? Escaped(rendering, left) : left, b = is_markup ? Escaped(rendering, right) : right;
  if (!rendering.ChargeMemory(a.text->size() + b.text->size())) return Value::Undefined();
  return rendering.MakeString(*a.text + *b.text, is_markup);
}

Value Append(Rendering& rendering, const List& left, const List& right) {
  if (!rendering.ChargeMemory((left.items.size() + right.items.size()) * sizeof(Value))) return Value::Undefined();
  std::vector<Value> items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  return rendering.MakeList(std::move(items), left.form);
}

// A string or list `times` times.
Value Repeat(Rendering& rendering, const Value& value, Int times) {
  const size_t size = value.IsString() ? value.text->size() : value.list->items.size() * sizeof(Value);
  const size_t count = times <= 0 || size == 0 ? 0 : static_cast<size_t>(std::min<Int>(times, kMaxValueBytes));
  if (!rendering.ChargeMemory(size * count)) return Value::Undefined();
  if (value.IsString()) {
    std::string text;
    text.reserve(size * count);
    for (size_t i = 0; i < count; ++i) text.append(*value.text);
    return rendering.MakeString(std::move(text), value.is_markup);
  }
  std::vector<Value> items;
  items.reserve(value.list->items.size() * count);
  for (size_t i = 0; i < count; ++i) items.insert(items.end(), value.list->items.begin(), value.list->items.end());
  return rendering.MakeList(std::move(items), value.list->form);
}

bool IsListOrTuple(const Value& value) {
  return IsForm(value, List::Form::kList) || IsForm(value, List::Form::kTuple);
}

bool AreListsEqual(Rendering& rendering, const List& left, const List& right) {
  if (left.form != right.form || left.items.size() != right.items.size() || left.form == List::Form::kIterator) return &left == &right;
  for (size_t i = 0; i < left.items.size(); ++i) {
    if (rendering.failed() || !AreEqual(rendering, left.items[i], right.items[i])) return false;
  }
  return true;
}

bool AreDictsEqual(Rendering& rendering, const Dict& left, const Dict& right) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    const Value* other = FindKey(rendering, right, key);
    if (other == nullptr || rendering.failed() || !AreEqual(rendering, value, *other)) return false;
  }
  return true;
}

bool IsListLess(Rendering& rendering, const List& left, const List& right) {
  const size_t shared = std::min(left.items.size(), right.items.size());
  for (size_t i = 0; i < shared && !rendering.failed(); ++i) {
    if (!AreEqual(rendering, left.items[i], right.items[i])) return IsLess(rendering, left.items[i], right.items[i]);
  }
  return left.items.size() < right.items.size();
}

bool Contains(Rendering& rendering, const Value& item, const Value& collection) {
  switch (collection.kind) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.IsString()) {
        rendering.Fail("only a string can be \"in\" a string, and this is ", TypeName(item), "; test its type first");
        return false;
      }
      rendering.Charge(collection.text->size());
      return Find(*collection.text, *item.text) != std::string_view::npos;
    case Kind::kDict:
      if (!IsHashable(rendering, item)) {
        rendering.Fail(TypeName(item), " cannot be a key of a dict; use a string");
        return false;
      }
      return FindKey(rendering, *collection.dict, item) != nullptr;
    case Kind::kList: {
      const bool is_iterator = collection.list->form == List::Form::kIterator;
      const std::vector<Value> read = is_iterator ? Iterate(rendering, collection) : std::vector<Value>();
      const std::vector<Value>& items = is_iterator ? read : collection.list->items;
      return std::ranges::any_of(items, [&](const Value& other) { return AreEqual(rendering, item, other); });
    }
    default:
      rendering.Fail(TypeName(collection), " has no items, so that nothing can be \"in\" it; test its type first");
      return false;
  }
}

std::optional<size_t> IndexOf(Rendering& rendering, const Dict& dict, const Value& key) {
  if (!rendering.Charge(dict.entries.size() * 2)) return std::nullopt;
  for (size_t i = 0; i < dict.entries.size(); ++i) {
    const Value& name = dict.entries[i].first;
    if (key.IsString() ? name.IsString() && *name.text == *key.text : AreEqual(rendering, name, key)) return i;
  }
  return std::nullopt;
}

// `index` counts from the end if it is negative. -1: there is no such item.
int64_t Position(Int index, int64_t length) {
  if (index < 0) index += length;
  return index < 0 || index >= length ? -1 : static_cast<int64_t>(index);
}

struct Cut {
  int64_t begin;
  int64_t count;
  int64_t step;
};

// What Python's slice(start, stop, step).indices(length) says. Nothing after an error.
std::optional<Cut> CutOf(Rendering& rendering, int64_t length, const Value& start, const Value& stop, const Value& step) {
  for (const Value& bound : {start, stop, step}) {
    if (bound.IsNone() || bound.IsIntegral()) continue;
    rendering.Fail("a bound of a slice is ", TypeName(bound), "; use integers");
    return std::nullopt;
  }
  const auto clamp = [](Int value, Int low, Int high) { return static_cast<int64_t>(std::clamp(value, low, high)); };
  const int64_t by = step.IsNone() ? 1 : clamp(step.AsInt(), -INT64_MAX, INT64_MAX);
  if (by == 0) {
    rendering.Fail("the step of a slice is 0; use another");
    return std::nullopt;
  }
  const int64_t low = by < 0 ? -1 : 0, high = by < 0 ? length - 1 : length;
  const auto bound = [&](const Value& value, int64_t fallback) {
    if (value.IsNone()) return fallback;
    const Int from_start = value.AsInt() < 0 ? value.AsInt() + length : value.AsInt();
    return clamp(from_start, low, high);
  };
  const int64_t first = bound(start, by < 0 ? high : low), last = bound(stop, by < 0 ? low : high);
  const int64_t span = by < 0 ? first - last : last - first;
  const int64_t stride = by < 0 ? -by : by;
  return Cut{.begin = first, .count = span <= 0 ? 0 : (span - 1) / stride + 1, .step = by};
}

Value SliceOfString(Rendering& rendering, const Value& value, const Cut& cut) {
  const std::string& text = *value.text;
  if (cut.step == 1) {
    const size_t begin = BytesBefore(text, cut.begin);
    const std::string_view rest = std::string_view(text).substr(begin);
    return rendering.MakeString(std::string(rest.substr(0, BytesBefore(rest, cut.count))), value.is_markup);
  }
  std::vector<std::string_view> chars;
  if (!rendering.ChargeMemory(text.size() * sizeof(std::string_view))) return Value::Undefined();
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view before = rest;
    NextChar(rest);
    chars.push_back(before.substr(0, before.size() - rest.size()));
  }
  std::string out;
  for (int64_t i = 0; i < cut.count; ++i) out.append(chars[cut.begin + i * cut.step]);
  return rendering.MakeString(std::move(out), value.is_markup);
}

}  // namespace

bool IsTrue(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean;
    case Kind::kInt:
      return value.integer != 0;
    case Kind::kFloat:
      return value.real != 0;
    case Kind::kString:
      return !value.text->empty();
    case Kind::kList:
      return !value.list->HasLength() || !value.list->items.empty();
    case Kind::kDict:
      return !value.dict->entries.empty();
    case Kind::kObject:
      return true;
  }
  return false;
}

Value Calculate(Rendering& rendering, Operator op, const Value& left, const Value& right) {
  if (!rendering.Charge()) return Value::Undefined();
  if (left.IsIntegral() && right.IsIntegral()) return CalculateInts(rendering, op, left.AsInt(), right.AsInt());
  if (left.IsNumber() && right.IsNumber()) return CalculateDoubles(rendering, op, left.AsDouble(), right.AsDouble());
  if (op == Operator::kModulo && left.IsString()) return FormatPercent(rendering, left, right);
  if (op == Operator::kAdd && left.IsString() && right.IsString()) return Join(rendering, left, right);
  if (op == Operator::kAdd && IsListOrTuple(left) && IsListOrTuple(right) && left.list->form == right.list->form) {
    return Append(rendering, *left.list, *right.list);
  }
  if (op == Operator::kMultiply && right.IsIntegral() && (left.IsString() || IsListOrTuple(left))) {
    return Repeat(rendering, left, right.AsInt());
  }
  if (op == Operator::kMultiply && left.IsIntegral() && (right.IsString() || IsListOrTuple(right))) {
    return Repeat(rendering, right, left.AsInt());
  }
  return Refuse(rendering, op, left, right);
}

Value Negative(Rendering& rendering, const Value& value) {
  if (value.Is(Kind::kFloat)) return Value::Real(-value.real);
  return CalculateInts(rendering, Operator::kSubtract, 0, Positive(rendering, value).integer);
}

Value Positive(Rendering& rendering, const Value& value) {
  if (value.Is(Kind::kFloat)) return value;
  if (value.IsIntegral()) return Value::Integer(value.AsInt());
  rendering.Fail(value.IsUndefined() ? NameOf(value) + " is undefined" : TypeName(value), " has no sign; use a number");
  return Value::Integer(0);
}

bool AreEqual(Rendering& rendering, const Value& left, const Value& right) {
  const Rendering::Level level(rendering);
  if (!rendering.Charge() || !level.ok()) return false;
  if (left.IsNumber() && right.IsNumber()) return std::is_eq(Order(left, right));
  if (left.kind != right.kind) return false;
  switch (left.kind) {
    case Kind::kString:
      rendering.Charge(std::min(left.text->size(), right.text->size()));
      return *left.text == *right.text;
    case Kind::kList:
      return AreListsEqual(rendering, *left.list, *right.list);
    case Kind::kDict:
      return AreDictsEqual(rendering, *left.dict, *right.dict);
    case Kind::kObject:
      return left.object == right.object;
    default:
      return true;
  }
}

bool IsLess(Rendering& rendering, const Value& left, const Value& right) {
  const Rendering::Level level(rendering);
  if (!rendering.Charge() || !level.ok()) return false;
  if (left.IsNumber() && right.IsNumber()) return std::is_lt(Order(left, right));
  if (left.IsString() && right.IsString()) {
    rendering.Charge(std::min(left.text->size(), right.text->size()));
    return *left.text < *right.text;  // the order of UTF-8 is that of characters
  }
  if (IsListOrTuple(left) && IsListOrTuple(right) && left.list->form == right.list->form) {
    return IsListLess(rendering, *left.list, *right.list);
  }
  Refuse(rendering, Operator::kLess, left, right);
  return false;
}

bool Compare(Rendering& rendering, Operator op, const Value& left, const Value& right) {
  switch (op) {
    case Operator::kEqual:
      return AreEqual(rendering, left, right);
    case Operator::kNotEqual:
      return !AreEqual(rendering, left, right);
    case Operator::kLess:
      return IsLess(rendering, left, right);
    case Operator::kGreater:
      return IsLess(rendering, right, left);
    case Operator::kLessEqual:
      return IsLess(rendering, left, right) || AreEqual(rendering, left, right);
    case Operator::kGreaterEqual:
      return IsLess(rendering, right, left) || AreEqual(rendering, left, right);
    case Operator::kIn:
      return Contains(rendering, left, right);
    default:
      return !Contains(rendering, left, right);
  }
}

bool IsIterable(const Value& value) {
  return value.IsUndefined() || value.IsString() || value.Is(Kind::kList) || value.Is(Kind::kDict);
}

std::vector<Value> Iterate(Rendering& rendering, const Value& value) {
  std::vector<Value> items;
  if (!IsIterable(value)) {
    rendering.Fail(TypeName(value), " has no items to go through; give a list, or test it first");
  } else if (value.Is(Kind::kList)) {
    if (!rendering.ChargeMemory(value.list->items.size() * sizeof(Value))) return items;
    items = value.list->items;
    if (value.list->form == List::Form::kIterator) value.list->items.clear();
  } else if (value.Is(Kind::kDict)) {
    if (!rendering.ChargeMemory(value.dict->entries.size() * sizeof(Value))) return items;
    for (const auto& entry : value.dict->entries) items.push_back(entry.first);
  } else if (value.IsString()) {
    for (std::string_view rest = *value.text; !rest.empty() && !rendering.failed();) {
      const std::string_view before = rest;
      NextChar(rest);
      items.push_back(rendering.MakeString(std::string(before.substr(0, before.size() - rest.size()))));
    }
  }
  return items;
}

std::optional<int64_t> LengthOf(const Value& value) {
  if (value.IsUndefined()) return 0;
  if (value.IsString()) return Length(*value.text);
  if (value.Is(Kind::kDict)) return static_cast<int64_t>(value.dict->entries.size());
  if (value.Is(Kind::kList) && value.list->HasLength()) return static_cast<int64_t>(value.list->items.size());
  return std::nullopt;
}

bool IsHashable(Rendering& rendering, const Value& value) {
  const Rendering::Level level(rendering);
  if (!rendering.Charge() || !level.ok()) return false;
  if (value.Is(Kind::kDict) || IsForm(value, List::Form::kList)) return false;
  if (!IsForm(value, List::Form::kTuple)) return true;
  const auto& items = value.list->items;
  return std::all_of(items.begin(), items.end(), [&](const Value& item) { return IsHashable(rendering, item); });
}

const Value* FindKey(Rendering& rendering, const Dict& dict, const Value& key) {
  const auto at = IndexOf(rendering, dict, key);
  return at.has_value() ? &dict.entries[*at].second : nullptr;
}

void SetKey(Rendering& rendering, Dict& dict, const Value& key, const Value& value) {
  if (!IsHashable(rendering, key)) {
    rendering.Fail(TypeName(key), " cannot be a key of a dict; use a string");
  } else if (const auto at = IndexOf(rendering, dict, key); at.has_value()) {
    dict.entries[*at].second = value;
  } else if (rendering.ChargeMemory(2 * sizeof(Value))) {
    dict.entries.emplace_back(key, value);
  }
}

std::optional<Value> FindItem(Rendering& rendering, const Value& value, const Value& key) {
  if (!rendering.Charge()) return std::nullopt;
  if (value.Is(Kind::kDict)) {
    const Value* found = IsHashable(rendering, key) ? FindKey(rendering, *value.dict, key) : nullptr;
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  if (!key.IsIntegral()) return std::nullopt;
  if (value.Is(Kind::kList) && value.list->HasItems()) {
    const int64_t at = Position(key.AsInt(), static_cast<int64_t>(value.list->items.size()));
    return at < 0 ? std::nullopt : std::optional(value.list->items[at]);
  }
  if (!value.IsString() || !rendering.Charge(value.text->size())) return std::nullopt;
  const int64_t at = Position(key.AsInt(), Length(*value.text));
  if (at < 0) return std::nullopt;
  return SliceOfString(rendering, value, {.begin = at, .count = 1, .step = 1});
}

Value SliceOf(Rendering& rendering, const Value& value, const Value& start, const Value& stop, const Value& step) {
  const bool is_list = value.Is(Kind::kList) && value.list->HasItems();
  if (!is_list && !value.IsString()) {
    const std::string what = value.IsUndefined() ? NameOf(value) + " is undefined and" : TypeName(value);
    return rendering.Fail(what, " has no slices; give a list or a string");
  }
  if (!rendering.Charge(value.IsString() ? value.text->size() : 0)) return Value::Undefined();
  const auto cut = CutOf(rendering, *LengthOf(value), start, stop, step);
  if (!cut.has_value()) return Value::Undefined();
  if (value.IsString()) return SliceOfString(rendering, value, *cut);
  if (!rendering.ChargeMemory(static_cast<size_t>(cut->count) * sizeof(Value))) return Value::Undefined();
  std::vector<Value> items;
  items.reserve(cut->count);
  for (int64_t i = 0; i < cut->count; ++i) items.push_back(value.list->items[cut->begin + i * cut->step]);
  return rendering.MakeList(std::move(items), value.list->form);
}

Value Escaped(Rendering& rendering, const Value& value) {
  if (value.is_markup) return value;
  return rendering.MakeString(HtmlEscaped(ViewOf(rendering, value)), true);
}

}  // namespace lime::jinja
