// The tests behind "is".
#include <algorithm>

#include "coordinator/text/jinja/builtins/filters.h"
#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/printing.h"
#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {
namespace {

template <Kind kind>
Value IsOfKind(Call& call) {
  return Value::Bool(call.self.Is(kind));
}

template <Operator op>
Value Compared(Call& call) {
  return Value::Bool(Compare(call.rendering, op, call.self, call.At(0)));
}

template <bool value>
Value IsConstant(Call& call) {
  return Value::Bool(call.self.Is(Kind::kBool) && call.self.boolean == value);
}

template <bool (*is_so)(std::string_view)>
Value AskedOfText(Call& call) {
  return Value::Bool(is_so(call.Text()));
}

template <bool (*has)(std::string_view)>
Value IsName(Call& call) {
  return Value::Bool(call.self.IsString() && has(*call.self.text));
}

// Whether the rest of the division by `divisor` is `rest`.
Value HasRest(Call& call, const Value& divisor, Int rest) {
  const Value found = Calculate(call.rendering, Operator::kModulo, call.self, divisor);
  return Value::Bool(AreEqual(call.rendering, found, Value::Integer(rest)));
}

Value IsOdd(Call& call) {
  return HasRest(call, Value::Integer(2), 1);
}

Value IsEven(Call& call) {
  return HasRest(call, Value::Integer(2), 0);
}

Value IsDivisible(Call& call) {
  return HasRest(call, call.At(0), 0);
}

Value IsDefined(Call& call) {
  return Value::Bool(!call.self.IsUndefined());
}

Value IsNumber(Call& call) {
  return Value::Bool(call.self.IsNumber());
}

Value IsSequence(Call& call) {
  const Value& value = call.self;
  return Value::Bool(value.IsUndefined() || value.IsString() || value.Is(Kind::kDict) || (value.Is(Kind::kList) && value.list->HasItems()));
}

Value IsIterableValue(Call& call) {
  return Value::Bool(IsIterable(call.self));
}

Value IsCallable(Call& call) {
  return Value::Bool(call.self.IsUndefined() || (call.self.Is(Kind::kObject) && call.self.object->IsCallable()));
}

Value IsMarkup(Call& call) {
  return Value::Bool(call.self.IsString() && call.self.is_markup);
}

// Python's "is": constants and small numbers are the same wherever they come from.
Value IsSame(Call& call) {
  const Value &left = call.self, &right = call.bound[0].value();
  if (left.kind != right.kind) return Value::Bool(false);
  switch (left.kind) {
    case Kind::kList:
      return Value::Bool(left.list == right.list);
    case Kind::kDict:
      return Value::Bool(left.dict == right.dict);
    case Kind::kObject:
      return Value::Bool(left.object == right.object);
    default:
      return Value::Bool(AreEqual(call.rendering, left, right));
  }
}

constexpr Builtin kTests[] = {
    {"!=", Compared<Operator::kNotEqual>, "other"},
    {"<", Compared<Operator::kLess>, "other"},
    {"<=", Compared<Operator::kLessEqual>, "other"},
    {"==", Compared<Operator::kEqual>, "other"},
    {">", Compared<Operator::kGreater>, "other"},
    {">=", Compared<Operator::kGreaterEqual>, "other"},
    {"boolean", IsOfKind<Kind::kBool>, ""},
    {"callable", IsCallable, ""},
    {"defined", IsDefined, ""},
    {"divisibleby", IsDivisible, "num"},
    {"eq", Compared<Operator::kEqual>, "other"},
    {"equalto", Compared<Operator::kEqual>, "other"},
    {"escaped", IsMarkup, ""},
    {"even", IsEven, ""},
    {"false", IsConstant<false>, ""},
    {"filter", IsName<HasFilter>, ""},
    {"float", IsOfKind<Kind::kFloat>, ""},
    {"ge", Compared<Operator::kGreaterEqual>, "other"},
    {"greaterthan", Compared<Operator::kGreater>, "other"},
    {"gt", Compared<Operator::kGreater>, "other"},
    {"in", Compared<Operator::kIn>, "seq"},
    {"integer", IsOfKind<Kind::kInt>, ""},
    {"iterable", IsIterableValue, ""},
    {"le", Compared<Operator::kLessEqual>, "other"},
    {"lessthan", Compared<Operator::kLess>, "other"},
    {"lower", AskedOfText<IsLower>, ""},
    {"lt", Compared<Operator::kLess>, "other"},
    {"mapping", IsOfKind<Kind::kDict>, ""},
    {"ne", Compared<Operator::kNotEqual>, "other"},
    {"none", IsOfKind<Kind::kNone>, ""},
    {"number", IsNumber, ""},
    {"odd", IsOdd, ""},
    {"sameas", IsSame, "other"},
    {"sequence", IsSequence, ""},
    {"string", IsOfKind<Kind::kString>, ""},
    {"test", IsName<HasTest>, ""},
    {"true", IsConstant<true>, ""},
    {"undefined", IsOfKind<Kind::kUndefined>, ""},
    {"upper", AskedOfText<IsUpper>, ""},
};

}  // namespace

bool ApplyTest(Rendering& rendering, std::string_view name, const Value& input, const Arguments& arguments) {
  const Builtin* test = FindBuiltin(kTests, name);
  if (test != nullptr) return IsTrue(CallBuiltin(rendering, *test, input, arguments));
  rendering.Fail("there is no test \"", Shortened(name), "\"; use one of Jinja's");
  return false;
}

bool HasTest(std::string_view name) {
  return FindBuiltin(kTests, name) != nullptr;
}

}  // namespace lime::jinja
