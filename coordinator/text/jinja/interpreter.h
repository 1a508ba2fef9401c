// Carries out a parsed chat template.
//
// Thread: one. Statements are in interpreter.cc, expressions in evaluate.cc, calls of macros and
// loops in calls.cc.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/text/jinja/syntax/syntax.h"
#include "coordinator/text/jinja/values/rendering.h"

namespace lime::jinja {

// Variables of a loop's turn, a macro's call, or a block. Reading goes outwards, setting does not.
// The outermost variables are the interpreter's own.
struct Scope {
  Scope* outer = nullptr;  // null: the outermost
  std::vector<std::pair<NameId, Value>> variables;
  bool is_captured = false;  // a macro was defined inside, and may read it later
};

class Interpreter {
 public:
  // REQUIRES: both outlive this object.
  Interpreter(const Syntax& syntax, Rendering& rendering) : syntax_(syntax), rendering_(rendering), globals_(syntax.names.size()) {}

  void SetGlobal(NameId name, const Value& value) { globals_[name] = value; }

  // The rendered text, which means nothing after an error of the rendering.
  std::string Run();

  // Calls a macro that was defined in `scope`. Returns what it prints.
  Value CallMacro(const MacroSyntax& macro, Scope* scope, const Arguments& arguments);

  // Goes through `items` once more inside a recursive loop that stands in `scope`. Returns what that
  // prints.
  Value CallLoop(const ForStatement& loop, Scope* scope, const Value& items, int depth);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  Flow RunBlock(const Block& block);
  Flow RunIn(Scope& scope, const Block& block);
  std::string Captured(Scope& scope, const Block& block);
  // Hides what the caller gave of the names that the scope sets itself.
  void Hide(Scope& scope, ScopeId id);

  Flow Run(const TextStatement& statement);
  Flow Run(const OutputStatement& statement);
  Flow Run(const IfStatement& statement);
  Flow Run(const ForStatement& statement);
  Flow Run(const SetStatement& statement);
  Flow Run(const SetBlockStatement& statement);
  Flow Run(const MacroStatement& statement);
  Flow Run(const CallStatement& statement);
  Flow Run(const FilterStatement& statement);
  Flow Run(const WithStatement& statement);
  Flow Run(const BreakStatement&) { return Flow::kBreak; }
  Flow Run(const ContinueStatement&) { return Flow::kContinue; }

  void RunLoop(const ForStatement& loop, const Value& items, int depth);
  std::vector<Value> Kept(const ForStatement& loop, std::vector<Value> items);
  bool Bind(const MacroSyntax& macro, Scope& scope, const Arguments& arguments);
  bool BindRest(const MacroSyntax& macro, Scope& scope, const Arguments& arguments);

  void Print(std::string_view text);
  void Assign(const Target& target, const Value& value);
  void AssignMember(const Target& target, const Value& value);
  Scope& NewScope(Scope* outer, ScopeId id);
  // The macro as a value; its scope stays as it is from now on.
  Value Capture(const MacroSyntax& macro);
  const Value* Find(NameId name) const;

  Value Evaluate(const Expr& expr);
  Value EvaluateKind(const Expr& expr);
  bool IsSo(const Expr& expr);
  std::vector<Value> EvaluateAll(const std::vector<ExprPtr>& parts, size_t first = 0);
  Value EvaluateDict(const Expr& expr);
  Value EvaluateSlice(const Expr& expr);
  Value EvaluateCall(const Expr& expr, const std::optional<Value>& caller = std::nullopt);
  // `input` is that of the innermost filter without one.
  Value EvaluateFilter(const Expr& expr, const Value& input);
  Value EvaluateTest(const Expr& expr);
  Value EvaluateLogic(const Expr& expr, bool stops_at);
  Value EvaluateCompare(const Expr& expr);
  Value EvaluateMath(const Expr& expr);
  Value EvaluateConcat(const Expr& expr);
  Arguments EvaluateArguments(const Expr& expr);

  const Syntax& syntax_;
  Rendering& rendering_;
  std::vector<std::optional<Value>> globals_;
  Scope* scope_ = nullptr;  // null: the outermost
  std::deque<Scope> scopes_;
  std::string* out_ = nullptr;
};

}  // namespace lime::jinja
