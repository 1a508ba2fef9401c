// Filters whose input becomes a number, and "default".
#include <cmath>

#include "coordinator/text/jinja/builtins/filters.h"
#include "coordinator/text/jinja/values/format.h"
#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/printing.h"
#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {
namespace {

// Python's int(float). Nothing for what has no integer.
std::optional<Int> Whole(double value) {
  const double whole = std::trunc(value);
  if (!(std::fabs(whole) < 0x1p126)) return std::nullopt;
  return static_cast<Int>(whole);
}

Value RefuseUndefined(Call& call) {
  return call.Fail("needs a number, and ", NameOf(call.self), " is undefined; give it, or put \"|default(0)\" before");
}

Value AsInt(Call& call) {
  if (call.self.IsUndefined()) return RefuseUndefined(call);
  if (call.self.IsIntegral()) return Value::Integer(call.self.AsInt());
  const Int base = call.IntAt(1, 10);
  if (base != 0 && (base < 2 || base > 36)) return call.Fail("needs a base from 2 to 36; correct it");
  std::optional<Int> value;
  std::optional<double> real;
  if (call.self.Is(Kind::kFloat)) real = call.self.real;
  if (call.self.IsString()) value = ParseInt(*call.self.text, static_cast<int>(base));
  if (call.self.IsString() && !value.has_value()) real = ParseFloat(*call.self.text);
  if (real.has_value()) value = Whole(*real);
  if (value.has_value()) return Value::Integer(*value);
  if (real.has_value() && !std::isnan(*real)) return call.Fail("finds a number that is too large for an integer; use a smaller one");
  return call.bound[0].value_or(Value::Integer(0));
}

Value AsFloat(Call& call) {
  if (call.self.IsUndefined()) return RefuseUndefined(call);
  if (call.self.IsNumber()) return Value::Real(call.self.AsDouble());
  const auto value = call.self.IsString() ? ParseFloat(*call.self.text) : std::nullopt;
  return value.has_value() ? Value::Real(*value) : call.bound[0].value_or(Value::Real(0));
}

Value Absolute(Call& call) {
  const bool is_negative = call.self.IsNumber() && std::signbit(call.self.AsDouble());
  return is_negative ? Negative(call.rendering, call.self) : Positive(call.rendering, call.self);
}

// Half goes to the even neighbour, as in Python.
Value Rounded(Call& call) {
  if (!call.self.IsNumber()) return call.Fail("needs a number, not ", TypeName(call.self), "; convert it with \"|float\"");
  const Int places = call.IntAt(0, 0);
  const std::string_view method = call.Has(1) ? call.TextAt(1) : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    return call.Fail("rounds \"common\", \"ceil\" or \"floor\"; use one of them");
  if (places < -300 || places > 300) return call.Fail("needs a precision from -300 to 300; correct it");
  const double value = call.self.AsDouble(), scale = std::pow(10.0, static_cast<double>(places));
  if (method != "common" && !std::isfinite(value)) return call.Fail("needs a number that is not infinite; test it first");
  if (method != "common")
    return Value::Real((method == "ceil" ? std::ceil(value * scale) + 0.0 : std::floor(value * scale) + 0.0) / scale);  // no -0.0
  if (call.self.IsIntegral() && places >= 0) return Value::Integer(call.self.AsInt());
  if (places < 0) {
    const double rounded = std::nearbyint(value * scale) / scale;
    return call.self.IsIntegral() ? Value::Integer(Whole(rounded).value_or(0)) : Value::Real(rounded);
  }
  if (!std::isfinite(value)) return call.self;
  const std::string text = FormatValue(call.rendering, call.self, {.precision = static_cast<int64_t>(places), .type = 'f'});
  return Value::Real(ParseFloat(text).value_or(value));
}

Value Default(Call& call) {
  const bool is_missing = call.self.IsUndefined() || (call.IsTrueAt(1) && !IsTrue(call.self));
  return is_missing ? call.bound[0].value_or(call.String("")) : call.self;
}

constexpr Builtin kNumberFilters[] = {
    {"abs", Absolute, ""},          {"d", Default, "default_value= boolean="}, {"default", Default, "default_value= boolean="},
    {"float", AsFloat, "default="}, {"int", AsInt, "default= base="},          {"round", Rounded, "precision= method="},
};

}  // namespace

std::span<const Builtin> NumberFilters() {
  return kNumberFilters;
}

}  // namespace lime::jinja
