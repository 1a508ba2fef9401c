// Expressions.
#include "coordinator/text/jinja/builtins/access.h"
#include "coordinator/text/jinja/builtins/filters.h"
#include "coordinator/text/jinja/interpreter.h"
#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/printing.h"

namespace lime::jinja {

Value Interpreter::Evaluate(const Expr& expr) {
  const Rendering::Level level(rendering_);
  rendering_.set_line(expr.line);
  if (!level.ok() || !rendering_.Charge()) return Value::Undefined();
  return EvaluateKind(expr);
}

Value Interpreter::EvaluateKind(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kVariable: {
      const Value* value = Find(expr.name);
      return value != nullptr ? *value : Value::Undefined(&expr.text);
    }
    case ExprKind::kList:
      return rendering_.MakeList(EvaluateAll(expr.parts));
    case ExprKind::kTuple:
      return rendering_.MakeList(EvaluateAll(expr.parts), List::Form::kTuple);
    case ExprKind::kDict:
      return EvaluateDict(expr);
    case ExprKind::kAttribute:
      return AttributeOf(rendering_, Evaluate(*expr.parts[0]), expr.text);
    case ExprKind::kItem: {
      const Value object = Evaluate(*expr.parts[0]), key = Evaluate(*expr.parts[1]);
      return ItemOf(rendering_, object, key);
    }
    case ExprKind::kSlice:
      return EvaluateSlice(expr);
    case ExprKind::kCall:
      return EvaluateCall(expr);
    case ExprKind::kFilter:
      return EvaluateFilter(expr, Value::Undefined());
    case ExprKind::kTest:
      return EvaluateTest(expr);
    case ExprKind::kNot:
      return Value::Bool(!IsSo(*expr.parts[0]));
    case ExprKind::kNegative:
      return Negative(rendering_, Evaluate(*expr.parts[0]));
    case ExprKind::kPositive:
      return Positive(rendering_, Evaluate(*expr.parts[0]));
    case ExprKind::kAnd:
      return EvaluateLogic(expr, false);
    case ExprKind::kOr:
      return EvaluateLogic(expr, true);
    case ExprKind::kCompare:
      return EvaluateCompare(expr);
    case ExprKind::kMath:
      return EvaluateMath(expr);
    case ExprKind::kConcat:
      return EvaluateConcat(expr);
    case ExprKind::kChoice:
      if (IsSo(*expr.parts[0])) return Evaluate(*expr.parts[1]);
      return expr.parts[2] != nullptr ? Evaluate(*expr.parts[2]) : Value::Undefined();
  }
  return Value::Undefined();
}

// Whether the value counts as true. False after an error.
bool Interpreter::IsSo(const Expr& expr) {
  const Value value = Evaluate(expr);
  return !rendering_.failed() && IsTrue(value);
}

std::vector<Value> Interpreter::EvaluateAll(const std::vector<ExprPtr>& parts, size_t first) {
  std::vector<Value> values;
  for (size_t i = first; i < parts.size() && !rendering_.failed(); ++i) values.push_back(Evaluate(*parts[i]));
  return values;
}

Value Interpreter::EvaluateDict(const Expr& expr) {
  const Value made = rendering_.MakeDict();
  for (size_t i = 0; i + 1 < expr.parts.size() && !rendering_.failed(); i += 2) {
    const Value key = Evaluate(*expr.parts[i]), value = Evaluate(*expr.parts[i + 1]);
    SetKey(rendering_, *made.dict, key, value);
  }
  return made;
}

Value Interpreter::EvaluateSlice(const Expr& expr) {
  const Value object = Evaluate(*expr.parts[0]);
  Value bounds[3] = {Value::None(), Value::None(), Value::None()};
  for (size_t i = 0; i < 3; ++i) {
    if (expr.parts[i + 1] != nullptr) bounds[i] = Evaluate(*expr.parts[i + 1]);
  }
  return rendering_.failed() ? Value::Undefined() : SliceOf(rendering_, object, bounds[0], bounds[1], bounds[2]);
}

// Those of a call, filter or test, whose first part is something else.
Arguments Interpreter::EvaluateArguments(const Expr& expr) {
  Arguments arguments{.values = EvaluateAll(expr.parts, 1)};
  if (expr.more_values != nullptr) {
    for (const Value& value : Iterate(rendering_, Evaluate(*expr.more_values))) arguments.values.push_back(value);
  }
  for (const auto& [name, value] : expr.named) {
    if (!rendering_.failed()) arguments.named.emplace_back(name, Evaluate(*value));
  }
  if (expr.more_named == nullptr) return arguments;
  const Value more = Evaluate(*expr.more_named);
  if (rendering_.failed()) return arguments;
  if (!more.Is(Kind::kDict)) rendering_.Fail("\"**\" needs a dict, not ", TypeName(more), "; give one");
  for (size_t i = 0; more.Is(Kind::kDict) && i < more.dict->entries.size(); ++i) {
    const auto& [key, value] = more.dict->entries[i];
    if (!key.IsString()) rendering_.Fail("\"**\" needs names as keys, not ", TypeName(key), "; use strings");
    if (rendering_.failed()) break;
    arguments.named.emplace_back(*key.text, value);
  }
  return arguments;
}

Value Interpreter::EvaluateCall(const Expr& expr, const std::optional<Value>& caller) {
  const Value callee = Evaluate(*expr.parts[0]);
  if (rendering_.failed()) return Value::Undefined();
  Arguments arguments = EvaluateArguments(expr);
  if (caller.has_value()) arguments.named.emplace_back("caller", *caller);
  if (rendering_.failed()) return Value::Undefined();
  rendering_.set_line(expr.line);
  if (callee.Is(Kind::kObject)) return callee.object->Call(rendering_, arguments);
  if (callee.IsUndefined())
    return rendering_.Fail(NameOf(callee), " is undefined and cannot be called; use a function or method that exists");
  return rendering_.Fail(TypeName(callee), " is called, and it is no function; remove the brackets");
}

Value Interpreter::EvaluateFilter(const Expr& expr, const Value& input) {
  const Rendering::Level level(rendering_);
  if (!level.ok()) return Value::Undefined();
  const Expr* inner = expr.parts[0].get();
  const Value value = inner == nullptr ? input : inner->kind == ExprKind::kFilter ? EvaluateFilter(*inner, input) : Evaluate(*inner);
  const Arguments arguments = EvaluateArguments(expr);
  if (rendering_.failed()) return Value::Undefined();
  rendering_.set_line(expr.line);
  return ApplyFilter(rendering_, expr.text, value, arguments);
}

Value Interpreter::EvaluateTest(const Expr& expr) {
  const Value value = Evaluate(*expr.parts[0]);
  const Arguments arguments = EvaluateArguments(expr);
  if (rendering_.failed()) return Value::Undefined();
  return Value::Bool(ApplyTest(rendering_, expr.text, value, arguments));
}

// The first value whose truth is `stops_at`, or the last one.
Value Interpreter::EvaluateLogic(const Expr& expr, bool stops_at) {
  Value value;
  for (const ExprPtr& part : expr.parts) {
    value = Evaluate(*part);
    if (rendering_.failed() || IsTrue(value) == stops_at) break;
  }
  return value;
}

Value Interpreter::EvaluateCompare(const Expr& expr) {
  Value left = Evaluate(*expr.parts[0]);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    const Value right = Evaluate(*expr.parts[i + 1]);
    if (rendering_.failed() || !Compare(rendering_, expr.operators[i], left, right)) return Value::Bool(false);
    left = right;
  }
  return Value::Bool(true);
}

Value Interpreter::EvaluateMath(const Expr& expr) {
  Value left = Evaluate(*expr.parts[0]);
  for (size_t i = 0; i < expr.operators.size() && !rendering_.failed(); ++i) {
    const Value right = Evaluate(*expr.parts[i + 1]);
    rendering_.set_line(expr.line);
    left = Calculate(rendering_, expr.operators[i], left, right);
  }
  return left;
}

Value Interpreter::EvaluateConcat(const Expr& expr) {
  std::string text;
  for (const ExprPtr& part : expr.parts) {
    const Value value = Evaluate(*part);
    if (rendering_.failed()) break;
    text.append(TextOf(rendering_, value));
  }
  return rendering_.MakeString(std::move(text));
}

}  // namespace lime::jinja
