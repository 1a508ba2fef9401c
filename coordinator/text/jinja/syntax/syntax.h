// A parsed chat template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/text/jinja/values/operations.h"

namespace lime::jinja {

// Bounds of a template. Real ones have at most 20 KiB and nest about 12 levels.
inline constexpr Bytes kMaxTemplateBytes = 256 * kKiB;
// Statements, and expressions, inside each other.
inline constexpr int kMaxSyntaxDepth = 64;

// The place of a variable's name in Syntax::names.
using NameId = int;

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kConstant,   // `constant`
  kVariable,   // `name`
  kList,       // parts: items
  kTuple,      // parts: items
  kDict,       // parts: key, value, key, value, ...
  kAttribute,  // parts: object; `text`
  kItem,       // parts: object, key
  kSlice,      // parts: object, start, stop, step; a bound that is left out is null
  kCall,       // parts: callee, arguments
  kFilter,     // parts: input (null in {% filter %} and {% set %}), arguments; `text`
  kTest,       // parts: input, arguments; `text`
  kNot,        // parts: operand
  kNegative,   // parts: operand
  kPositive,   // parts: operand
  kAnd,        // parts: operands
  kOr,         // parts: operands
  kCompare,    // parts: operands, `operators` between them; all comparisons must hold
  kMath,       // parts: operands, `operators` between them, from left to right
  kConcat,     // parts: operands of "~"
  kChoice,     // parts: condition, value, other value or null
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 0;
  Value constant;
  std::string text;  // also that of a constant string
  NameId name = -1;
  std::vector<ExprPtr> parts;
  std::vector<Operator> operators;
  // Of calls, filters and tests: name=value, *values and **values.
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr more_values;
  ExprPtr more_named;
};

struct Statement;
using Block = std::vector<Statement>;

// What is assigned to: a variable, a member of a namespace, or several of them.
struct Target {
  NameId name = -1;
  std::string member;
  std::vector<Target> parts;  // if it has some, there is no name
};

struct Parameter {
  NameId name = -1;
  std::string text;
  ExprPtr fallback;  // may be null
};

// The place of a block's scope in Syntax::unset.
using ScopeId = int;

// A macro, or the body of a {% call %}.
struct MacroSyntax {
  std::string name;
  std::vector<Parameter> parameters;
  // Whether the body reads these variables.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  ScopeId scope = 0;
  std::unique_ptr<Block> body;
};

struct TextStatement {
  std::string text;
};
struct OutputStatement {
  ExprPtr value;
};
struct IfStatement {
  struct Branch {
    ExprPtr condition;  // null: else
    Block body;
  };
  std::vector<Branch> branches;
};
struct ForStatement {
  Target target;
  ExprPtr items;
  ExprPtr condition;  // may be null
  ScopeId condition_scope = 0;
  bool is_recursive = false;
  ScopeId scope = 0;
  Block body;
  ScopeId else_scope = 0;
  Block otherwise;
};
struct SetStatement {
  Target target;
  ExprPtr value;
};
// {% set x %} ... {% endset %}
struct SetBlockStatement {
  Target target;
  ExprPtr filter;  // may be null; its innermost input is
  ScopeId scope = 0;
  Block body;
};
struct MacroStatement {
  NameId name = -1;
  MacroSyntax macro;
};
struct CallStatement {
  ExprPtr call;
  MacroSyntax caller;
};
struct FilterStatement {
  ExprPtr filter;
  ScopeId scope = 0;
  Block body;
};
// {% with %}, and without targets {% generation %}.
struct WithStatement {
  std::vector<std::pair<Target, ExprPtr>> targets;
  ScopeId scope = 0;
  Block body;
};
struct BreakStatement {};
struct ContinueStatement {};

struct Statement {
  int line = 0;
  std::variant<TextStatement, OutputStatement, IfStatement, ForStatement, SetStatement, SetBlockStatement, MacroStatement, CallStatement,
               FilterStatement, WithStatement, BreakStatement, ContinueStatement>
      what;
};

// Variables that the language itself sets.
inline constexpr NameId kLoop = 0, kCaller = 1, kVarargs = 2, kKwargs = 3;

struct Syntax {
  std::vector<std::string> names = {"loop", "caller", "varargs", "kwargs"};
  // By scope: names that it sets before it reads them, and that nothing around it mentions. Until
  // they are set, they are undefined inside, also if the caller gave them.
  std::vector<std::vector<NameId>> unset;
  ScopeId scope = 0;  // the outermost
  Block body;
};

}  // namespace lime::jinja
