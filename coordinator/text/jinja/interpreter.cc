#include "coordinator/text/jinja/interpreter.h"

#include <algorithm>
#include <variant>

#include "coordinator/text/jinja/builtins/globals.h"
#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/printing.h"
#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {

std::string Interpreter::Run() {
  std::string text;
  out_ = &text;
  for (const NameId name : syntax_.unset[syntax_.scope]) globals_[name] = std::nullopt;
  RunBlock(syntax_.body);
  return text;
}

Interpreter::Flow Interpreter::RunBlock(const Block& block) {
  const Rendering::Level level(rendering_);
  Flow flow = Flow::kNext;
  for (const Statement& statement : block) {
    rendering_.set_line(statement.line);
    if (flow != Flow::kNext || !level.ok() || !rendering_.Charge()) break;
    flow = std::visit([this](const auto& what) { return Run(what); }, statement.what);
  }
  return flow;
}

Interpreter::Flow Interpreter::RunIn(Scope& scope, const Block& block) {
  Scope* before = std::exchange(scope_, &scope);
  const Flow flow = RunBlock(block);
  scope_ = before;
  return flow;
}

std::string Interpreter::Captured(Scope& scope, const Block& block) {
  std::string text;
  std::string* before = std::exchange(out_, &text);
  RunIn(scope, block);
  out_ = before;
  return text;
}

Interpreter::Flow Interpreter::Run(const TextStatement& statement) {
  Print(statement.text);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Run(const OutputStatement& statement) {
  const Value value = Evaluate(*statement.value);
  if (!rendering_.failed()) Print(value.IsString() ? *value.text : TextOf(rendering_, value));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Run(const IfStatement& statement) {
  for (const auto& [condition, body] : statement.branches) {
    if (condition == nullptr || IsSo(*condition)) return RunBlock(body);
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Run(const ForStatement& statement) {
  RunLoop(statement, Evaluate(*statement.items), 0);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Run(const SetStatement& statement) {
  Assign(statement.target, Evaluate(*statement.value));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Run(const SetBlockStatement& statement) {
  const Value text = rendering_.MakeString(Captured(NewScope(scope_, statement.scope), statement.body));
  Assign(statement.target, statement.filter == nullptr ? text : EvaluateFilter(*statement.filter, text));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Run(const MacroStatement& statement) {
  Assign(Target{.name = statement.name}, Capture(statement.macro));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Run(const CallStatement& statement) {
  const Value text = EvaluateCall(*statement.call, Capture(statement.caller));
  if (!rendering_.failed()) Print(TextOf(rendering_, text));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Run(const FilterStatement& statement) {
  const Value text = rendering_.MakeString(Captured(NewScope(scope_, statement.scope), statement.body));
  const Value filtered = EvaluateFilter(*statement.filter, text);
  if (!rendering_.failed()) Print(TextOf(rendering_, filtered));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Run(const WithStatement& statement) {
  std::vector<Value> values;  // do not see each other
  for (const auto& [target, value] : statement.targets) values.push_back(Evaluate(*value));
  Scope& scope = NewScope(scope_, statement.scope);
  Scope* before = std::exchange(scope_, &scope);
  for (size_t i = 0; i < values.size(); ++i) Assign(statement.targets[i].first, values[i]);
  scope_ = before;
  return RunIn(scope, statement.body);
}

void Interpreter::Print(std::string_view text) {
  if (static_cast<Bytes>(out_->size() + text.size()) > kMaxOutputBytes) {
    rendering_.Fail("the text is longer than ", kMaxOutputBytes / kMiB, " MiB; shorten the conversation");
  } else if (rendering_.Charge(text.size())) {
    out_->append(text);
  }
}

void Interpreter::Assign(const Target& target, const Value& value) {
  if (rendering_.failed()) return;
  if (!target.member.empty()) return AssignMember(target, value);
  if (target.parts.empty()) {
    if (scope_ == nullptr) return void(globals_[target.name] = value);
    auto& variables = scope_->variables;
    const auto found = std::ranges::find(variables, target.name, [](const auto& variable) { return variable.first; });
    if (found != variables.end()) return void(found->second = value);
    if (rendering_.ChargeMemory(sizeof(variables[0]))) variables.emplace_back(target.name, value);
    return;
  }
  const std::vector<Value> items = Iterate(rendering_, value);
  if (items.size() != target.parts.size()) {
    rendering_.Fail(items.size(), " values are assigned to ", target.parts.size(), " names; use as many names as values");
    return;
  }
  for (size_t i = 0; i < items.size(); ++i) Assign(target.parts[i], items[i]);
}

void Interpreter::AssignMember(const Target& target, const Value& value) {
  const Value* object = Find(target.name);
  auto* space = object != nullptr && object->Is(Kind::kObject) ? dynamic_cast<Namespace*>(object->object) : nullptr;
  if (space != nullptr) return space->Set(rendering_, target.member, value);
  rendering_.Fail("\"", Shortened(syntax_.names[target.name]),
                  "\" is no namespace, so that its member cannot be set; make it with namespace()");
}

Scope& Interpreter::NewScope(Scope* outer, ScopeId id) {
  rendering_.ChargeMemory(sizeof(Scope));
  Scope& scope = scopes_.emplace_back(Scope{.outer = outer});
  Hide(scope, id);
  return scope;
}

void Interpreter::Hide(Scope& scope, ScopeId id) {
  for (const NameId name : syntax_.unset[id]) {
    if (!rendering_.ChargeMemory(sizeof(scope.variables[0]))) return;
    scope.variables.emplace_back(name, Value::Undefined(&syntax_.names[name]));
  }
}

const Value* Interpreter::Find(NameId name) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->outer) {
    for (const auto& [id, value] : scope->variables) {
      if (id == name) return &value;
    }
  }
  return globals_[name].has_value() ? &*globals_[name] : nullptr;
}

}  // namespace lime::jinja
