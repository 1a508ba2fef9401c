// Parses the expressions of a chat template, with the precedence of Jinja.
#pragma once

#include "coordinator/text/jinja/syntax/token_stream.h"

namespace lime::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  absl::StatusOr<ExprPtr> ParseExpression();

  // One expression, or a tuple if commas follow. `with_choice`: "a if b else c" may stand there
  // without brackets. `end`: a name that ends a tuple, or empty.
  absl::StatusOr<ExprPtr> ParseTuple(bool with_choice, std::string_view end = "");

  // "|filter|filter" behind a value, or the same without the first "|" where `input` is null.
  absl::StatusOr<ExprPtr> ParseFilters(ExprPtr input);

  // What {% set %} and {% for %} assign to. `with_member`: also "namespace.member".
  absl::StatusOr<Target> ParseTarget(bool with_member);

 private:
  using Rule = absl::StatusOr<ExprPtr> (ExpressionParser::*)();

  absl::StatusOr<ExprPtr> ParseWithoutChoice() { return ParseOr(); }
  absl::StatusOr<ExprPtr> ParseChoice();
  absl::StatusOr<ExprPtr> ParseOr();
  absl::StatusOr<ExprPtr> ParseAnd();
  absl::StatusOr<ExprPtr> ParseNot();
  absl::StatusOr<ExprPtr> ParseCompare();
  absl::StatusOr<ExprPtr> ParseSum();
  absl::StatusOr<ExprPtr> ParseConcat();
  absl::StatusOr<ExprPtr> ParseProduct();
  absl::StatusOr<ExprPtr> ParsePower();
  absl::StatusOr<ExprPtr> ParseUnary() { return ParseSigned(/*with_filters=*/true); }
  absl::StatusOr<ExprPtr> ParseSigned(bool with_filters);
  absl::StatusOr<ExprPtr> ParsePrimary();
  absl::StatusOr<ExprPtr> ParsePostfix(ExprPtr object);
  absl::StatusOr<ExprPtr> ParseFiltersAndTests(ExprPtr input);
  absl::StatusOr<ExprPtr> ParseTest(ExprPtr input);
  absl::StatusOr<ExprPtr> ParseAttribute(ExprPtr object);
  absl::StatusOr<ExprPtr> ParseItem(ExprPtr object);
  absl::StatusOr<ExprPtr> ParseSubscript(ExprPtr object);
  absl::StatusOr<ExprPtr> ParseNumber();
  absl::StatusOr<ExprPtr> ParseString();
  absl::StatusOr<ExprPtr> ParseVariable();
  absl::StatusOr<ExprPtr> ParseBracketList();
  absl::StatusOr<ExprPtr> ParseDict();
  absl::Status ParseArguments(Expr& call);
  absl::Status ParseArgument(Expr& call);
  absl::StatusOr<Target> ParseTargets();
  absl::StatusOr<Target> ParseOneTarget();

  // Operands of `rule` between words of one kind: `words` and the operators that they mean.
  struct Word {
    std::string_view symbol;
    Operator op;
  };
  template <size_t N>
  absl::StatusOr<ExprPtr> ParseChain(Rule rule, ExprKind kind, const Word (&words)[N]);
  absl::StatusOr<ExprPtr> ParseNamed(Rule rule, ExprKind kind, std::string_view name);

  ExprPtr Make(ExprKind kind) const;
  // With one part.
  ExprPtr Make(ExprKind kind, ExprPtr part) const;

  TokenStream& tokens_;
};

}  // namespace lime::jinja
