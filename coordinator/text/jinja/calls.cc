// Loops and macros.
#include <algorithm>

#include "coordinator/text/jinja/interpreter.h"
#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/python_text.h"
#include "planner/base/strings.h"

namespace lime::jinja {
namespace {

// A macro, and where it was defined.
class Macro : public Object {
 public:
  Macro(Interpreter& interpreter, const MacroSyntax& syntax, Scope* scope) : interpreter_(interpreter), syntax_(syntax), scope_(scope) {}

  std::string Text(Rendering&) const override { return "<Macro '" + syntax_.name + "'>"; }
  std::optional<Value> Attribute(Rendering&, std::string_view name) override {
    return name == "name" ? std::optional(Value::String(&syntax_.name)) : std::nullopt;
  }
  Value Call(Rendering&, const Arguments& arguments) override { return interpreter_.CallMacro(syntax_, scope_, arguments); }

 private:
  Interpreter& interpreter_;
  const MacroSyntax& syntax_;
  Scope* const scope_;
};

// One of the methods of `loop`.
class LoopMethod : public Object {
 public:
  using Run = Value (*)(Rendering& rendering, int64_t index, Value& last, const Arguments& arguments);
  LoopMethod(Run run, int64_t index, Value& last) : run_(run), index_(index), last_(last) {}

  std::string Text(Rendering&) const override { return "<function of loop>"; }
  Value Call(Rendering& rendering, const Arguments& arguments) override { return run_(rendering, index_, last_, arguments); }

 private:
  const Run run_;
  const int64_t index_;
  Value& last_;  // of the Loop
};

Value Cycle(Rendering& rendering, int64_t index, Value&, const Arguments& arguments) {
  if (arguments.values.empty()) return rendering.Fail("loop.cycle() has no arguments; give some");
  return arguments.values[index % static_cast<int64_t>(arguments.values.size())];
}

// Whether the arguments differ from those of the last call.
Value Changed(Rendering& rendering, int64_t, Value& last, const Arguments& arguments) {
  const Value now = rendering.MakeList(arguments.values, List::Form::kTuple);
  const bool is_same = AreEqual(rendering, last, now);
  last = now;
  return Value::Bool(!is_same);
}

// The variable `loop`.
class Loop : public Object {
 public:
  Loop(Interpreter& interpreter, const ForStatement& syntax, Scope* scope, const std::vector<Value>& items, int depth)
      : interpreter_(interpreter), syntax_(syntax), scope_(scope), items_(items), depth_(depth) {}

  void set_index(int64_t index) { index_ = index; }

  std::string Text(Rendering&) const override { return absl::StrCat("<LoopContext ", index_ + 1, "/", items_.size(), ">"); }

  std::optional<Value> Attribute(Rendering& rendering, std::string_view name) override {
    const auto length = static_cast<int64_t>(items_.size());
    if (name == "index") return Value::Integer(index_ + 1);
    if (name == "index0") return Value::Integer(index_);
    if (name == "revindex") return Value::Integer(length - index_);
    if (name == "revindex0") return Value::Integer(length - index_ - 1);
    if (name == "first") return Value::Bool(index_ == 0);
    if (name == "last") return Value::Bool(index_ + 1 == length);
    if (name == "length") return Value::Integer(length);
    if (name == "depth") return Value::Integer(depth_ + 1);
    if (name == "depth0") return Value::Integer(depth_);
    if (name == "previtem") return index_ > 0 ? items_[index_ - 1] : Value::Undefined();
    if (name == "nextitem") return index_ + 1 < length ? items_[index_ + 1] : Value::Undefined();
    if (name == "cycle") return Value::Of(rendering.Make<LoopMethod>(Cycle, index_, last_));
    if (name == "changed") return Value::Of(rendering.Make<LoopMethod>(Changed, index_, last_));
    return std::nullopt;
  }

  Value Call(Rendering& rendering, const Arguments& arguments) override {
    if (!syntax_.is_recursive)
      return rendering.Fail("loop() is called, and the loop is not recursive; write \"recursive\" in its {% for %}");
    if (arguments.values.size() != 1 || !arguments.named.empty())
      return rendering.Fail("loop() needs the items to go through; give one list");
    return interpreter_.CallLoop(syntax_, scope_, arguments.values.front(), depth_ + 1);
  }

 private:
  Interpreter& interpreter_;
  const ForStatement& syntax_;
  Scope* const scope_;  // in which the loop stands
  const std::vector<Value>& items_;
  const int depth_;
  int64_t index_ = 0;
  Value last_;
};

}  // namespace

std::vector<Value> Interpreter::Kept(const ForStatement& loop, std::vector<Value> items) {
  if (loop.condition == nullptr) return items;
  std::vector<Value> kept;
  Scope* before = scope_;
  for (const Value& item : items) {
    if (!rendering_.Charge()) break;
    scope_ = &NewScope(before, loop.condition_scope);
    Assign(loop.target, item);
    if (IsSo(*loop.condition)) kept.push_back(item);
  }
  scope_ = before;
  return kept;
}

void Interpreter::RunLoop(const ForStatement& loop, const Value& items, int depth) {
  const Value kept = rendering_.MakeList(Kept(loop, Iterate(rendering_, items)));
  auto* state = rendering_.Make<Loop>(*this, loop, scope_, kept.list->items, depth);
  bool came_to_end = false;  // a turn did; otherwise, also after breaks alone, {% else %} follows
  Scope *outer = scope_, *scope = nullptr;
  for (size_t i = 0; i < kept.list->items.size() && rendering_.Charge(); ++i) {
    if (scope == nullptr || scope->is_captured) {
      scope = &NewScope(outer, loop.scope);
    } else {
      scope->variables.clear();
      Hide(*scope, loop.scope);
    }
    state->set_index(static_cast<int64_t>(i));
    scope_ = scope;
    Assign(Target{.name = kLoop}, Value::Of(state));
    Assign(loop.target, kept.list->items[i]);
    const Flow flow = RunBlock(loop.body);
    scope_ = outer;
    came_to_end = came_to_end || flow == Flow::kNext;
    if (flow == Flow::kBreak) break;
  }
  if (!came_to_end && !loop.otherwise.empty()) RunIn(NewScope(outer, loop.else_scope), loop.otherwise);
}

Value Interpreter::CallLoop(const ForStatement& loop, Scope* scope, const Value& items, int depth) {
  const Rendering::Level level(rendering_);
  if (!level.ok()) return Value::Undefined();
  std::string text;
  std::string* out = std::exchange(out_, &text);
  Scope* before = std::exchange(scope_, scope);
  RunLoop(loop, items, depth);
  scope_ = before;
  out_ = out;
  return rendering_.MakeString(std::move(text));
}

Value Interpreter::Capture(const MacroSyntax& macro) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->outer) scope->is_captured = true;
  return Value::Of(rendering_.Make<Macro>(*this, macro, scope_));
}

Value Interpreter::CallMacro(const MacroSyntax& macro, Scope* scope, const Arguments& arguments) {
  const Rendering::Level level(rendering_);
  if (!level.ok()) return Value::Undefined();
  const int line = rendering_.line();
  Scope& own = NewScope(scope, macro.scope);
  Scope* before = std::exchange(scope_, &own);
  std::string text;
  if (Bind(macro, own, arguments)) text = Captured(own, *macro.body);
  scope_ = before;
  if (!rendering_.failed()) rendering_.set_line(line);
  return rendering_.MakeString(std::move(text));
}

// REQUIRES: `scope` is the current one, since defaults read the parameters before them.
bool Interpreter::Bind(const MacroSyntax& macro, Scope& scope, const Arguments& arguments) {
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const auto named = std::ranges::find(arguments.named, parameter.text, [](const auto& argument) { return argument.first; });
    Value value = Value::Undefined(&parameter.text);
    if (i < arguments.values.size()) {
      value = arguments.values[i];
    } else if (named != arguments.named.end()) {
      value = named->second;
    } else if (parameter.fallback != nullptr) {
      value = Evaluate(*parameter.fallback);
    }
    scope.variables.emplace_back(parameter.name, value);
  }
  return BindRest(macro, scope, arguments) && !rendering_.failed();
}

// Arguments that have no parameter: for `varargs`, `kwargs` and `caller`, if the macro reads these.
bool Interpreter::BindRest(const MacroSyntax& macro, Scope& scope, const Arguments& arguments) {
  const auto& parameters = macro.parameters;
  const auto refuse = [&](const std::string& what) {
    rendering_.Fail("the macro \"", Shortened(macro.name), "\" is given ", what, "; remove it");
    return false;
  };
  std::vector<Value> more;
  for (size_t i = parameters.size(); i < arguments.values.size(); ++i) more.push_back(arguments.values[i]);
  if (!more.empty() && !macro.uses_varargs) return refuse("more arguments than it has parameters");
  const bool takes_caller = macro.uses_caller && std::ranges::find(parameters, kCaller, &Parameter::name) == parameters.end();
  Value caller = Value::Undefined();
  const Value others = rendering_.MakeDict();
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::ranges::find(parameters, name, &Parameter::text);
    if (found != parameters.end() && found - parameters.begin() >= static_cast<int64_t>(arguments.values.size())) continue;
    if (name == "caller" && takes_caller) {
      caller = value;
    } else if (macro.uses_kwargs) {
      SetKey(rendering_, *others.dict, rendering_.MakeString(std::string(name)), value);
    } else {
      return refuse("the argument \"" + Shortened(name) + "\", which it does not have or has already");
    }
  }
  if (takes_caller) scope.variables.emplace_back(kCaller, caller);
  if (macro.uses_varargs) scope.variables.emplace_back(kVarargs, rendering_.MakeList(std::move(more), List::Form::kTuple));
  if (macro.uses_kwargs) scope.variables.emplace_back(kKwargs, others);
  return true;
}

}  // namespace lime::jinja
