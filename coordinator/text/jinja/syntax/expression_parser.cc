#include "coordinator/text/jinja/syntax/expression_parser.h"

#include <algorithm>
#include <iterator>

#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {
namespace {

bool IsConstantName(std::string_view name) {
  return name == "true" || name == "false" || name == "none" || name == "True" || name == "False" || name == "None";
}

// Whether a tuple without brackets ends here.
bool AtTupleEnd(const TokenStream& tokens, std::string_view end) {
  const TokenKind kind = tokens.current().kind;
  if (kind == TokenKind::kOutputEnd || kind == TokenKind::kTagEnd || tokens.current().IsSymbol(")")) return true;
  return !end.empty() && tokens.current().IsName(end);
}

absl::Status CheckChain(const TokenStream& tokens, int length) {
  if (length <= kMaxSyntaxDepth) return absl::OkStatus();
  return WrongAt(tokens.line(), "more than ", kMaxSyntaxDepth,
                 " calls, attributes or filters follow one another; split them with {% set %}");
}

}  // namespace

ExprPtr ExpressionParser::Make(ExprKind kind) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = tokens_.line();
  return expr;
}

ExprPtr ExpressionParser::Make(ExprKind kind, ExprPtr part) const {
  ExprPtr expr = Make(kind);
  expr->parts.push_back(std::move(part));
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseExpression() {
  return ParseChoice();
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseTuple(bool with_choice, std::string_view end) {
  const Rule rule = with_choice ? &ExpressionParser::ParseExpression : &ExpressionParser::ParseWithoutChoice;
  if (AtTupleEnd(tokens_, end)) return tokens_.Unexpected("a value");
  ExprPtr tuple = Make(ExprKind::kTuple);
  bool has_comma = false;
  do {
    if (AtTupleEnd(tokens_, end)) break;
    LIME_ASSIGN_OR_RETURN(ExprPtr item, (this->*rule)());
    tuple->parts.push_back(std::move(item));
  } while (tokens_.SkipSymbol(",") && (has_comma = true));
  return has_comma ? std::move(tuple) : std::move(tuple->parts.front());
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseChoice() {
  LIME_ASSIGN_OR_RETURN(ExprPtr value, ParseOr());
  for (int length = 1; tokens_.current().IsName("if"); ++length) {
    LIME_RETURN_IF_ERROR(CheckChain(tokens_, length));
    ExprPtr choice = Make(ExprKind::kChoice);
    tokens_.Pop();
    LIME_ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
    ExprPtr otherwise;
    if (tokens_.SkipName("else")) {
      const TokenStream::Level level(tokens_);
      LIME_RETURN_IF_ERROR(level.Check());
      LIME_ASSIGN_OR_RETURN(otherwise, ParseChoice());
    }
    choice->parts.push_back(std::move(condition));
    choice->parts.push_back(std::move(value));
    choice->parts.push_back(std::move(otherwise));
    value = std::move(choice);
  }
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseNamed(Rule rule, ExprKind kind, std::string_view name) {
  LIME_ASSIGN_OR_RETURN(ExprPtr first, (this->*rule)());
  if (!tokens_.current().IsName(name)) return first;
  ExprPtr chain = Make(kind, std::move(first));
  while (tokens_.SkipName(name)) {
    LIME_ASSIGN_OR_RETURN(ExprPtr operand, (this->*rule)());
    chain->parts.push_back(std::move(operand));
  }
  return chain;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseOr() {
  return ParseNamed(&ExpressionParser::ParseAnd, ExprKind::kOr, "or");
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseAnd() {
  return ParseNamed(&ExpressionParser::ParseNot, ExprKind::kAnd, "and");
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseNot() {
  if (!tokens_.current().IsName("not")) return ParseCompare();
  const TokenStream::Level level(tokens_);
  LIME_RETURN_IF_ERROR(level.Check());
  tokens_.Pop();
  LIME_ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
  return Make(ExprKind::kNot, std::move(operand));
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseCompare() {
  constexpr Word kWords[] = {{"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
                             {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
  LIME_ASSIGN_OR_RETURN(ExprPtr first, ParseSum());
  ExprPtr chain = Make(ExprKind::kCompare, std::move(first));
  while (true) {
    const auto* word = std::ranges::find_if(kWords, [this](const Word& word) { return tokens_.current().IsSymbol(word.symbol); });
    if (word != std::end(kWords)) {
      chain->operators.push_back(word->op);
    } else if (tokens_.current().IsName("in")) {
      chain->operators.push_back(Operator::kIn);
    } else if (tokens_.current().IsName("not") && tokens_.next().IsName("in")) {
      tokens_.Pop();
      chain->operators.push_back(Operator::kNotIn);
    } else {
      break;
    }
    tokens_.Pop();
    LIME_ASSIGN_OR_RETURN(ExprPtr operand, ParseSum());
    chain->parts.push_back(std::move(operand));
  }
  return chain->operators.empty() ? std::move(chain->parts.front()) : std::move(chain);
}

template <size_t N>
absl::StatusOr<ExprPtr> ExpressionParser::ParseChain(Rule rule, ExprKind kind, const Word (&words)[N]) {
  LIME_ASSIGN_OR_RETURN(ExprPtr first, (this->*rule)());
  ExprPtr chain = Make(kind, std::move(first));
  while (true) {
    const auto* word = std::ranges::find_if(words, [this](const Word& word) { return tokens_.current().IsSymbol(word.symbol); });
    if (word == std::end(words)) break;
    chain->operators.push_back(word->op);
    tokens_.Pop();
    LIME_ASSIGN_OR_RETURN(ExprPtr operand, (this->*rule)());
    chain->parts.push_back(std::move(operand));
  }
  return chain->operators.empty() ? std::move(chain->parts.front()) : std::move(chain);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseSum() {
  constexpr Word kWords[] = {{"+", Operator::kAdd}, {"-", Operator::kSubtract}};
  return ParseChain(&ExpressionParser::ParseConcat, ExprKind::kMath, kWords);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseConcat() {
  constexpr Word kWords[] = {{"~", Operator::kAdd}};
  return ParseChain(&ExpressionParser::ParseProduct, ExprKind::kConcat, kWords);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseProduct() {
  constexpr Word kWords[] = {
      {"*", Operator::kMultiply}, {"/", Operator::kDivide}, {"//", Operator::kFloorDivide}, {"%", Operator::kModulo}};
  return ParseChain(&ExpressionParser::ParsePower, ExprKind::kMath, kWords);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParsePower() {
  constexpr Word kWords[] = {{"**", Operator::kPower}};
  return ParseChain(&ExpressionParser::ParseUnary, ExprKind::kMath, kWords);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseSigned(bool with_filters) {
  ExprPtr value;
  if (tokens_.current().IsSymbol("-") || tokens_.current().IsSymbol("+")) {
    const TokenStream::Level level(tokens_);
    LIME_RETURN_IF_ERROR(level.Check());
    const ExprKind kind = tokens_.Pop().text == "-" ? ExprKind::kNegative : ExprKind::kPositive;
    LIME_ASSIGN_OR_RETURN(ExprPtr operand, ParseSigned(/*with_filters=*/false));
    value = Make(kind, std::move(operand));
  } else {
    LIME_ASSIGN_OR_RETURN(value, ParsePrimary());
  }
  LIME_ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
  return with_filters ? ParseFiltersAndTests(std::move(value)) : absl::StatusOr<ExprPtr>(std::move(value));
}

absl::StatusOr<ExprPtr> ExpressionParser::ParsePrimary() {
  const TokenStream::Level level(tokens_);
  LIME_RETURN_IF_ERROR(level.Check());
  switch (tokens_.current().kind) {
    case TokenKind::kName:
      return ParseVariable();
    case TokenKind::kString:
      return ParseString();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return ParseNumber();
    default:
      break;
  }
  if (tokens_.current().IsSymbol("[")) return ParseBracketList();
  if (tokens_.current().IsSymbol("{")) return ParseDict();
  if (!tokens_.SkipSymbol("(")) return tokens_.Unexpected("a value");
  if (tokens_.SkipSymbol(")")) return Make(ExprKind::kTuple);
  LIME_ASSIGN_OR_RETURN(ExprPtr value, ParseTuple(/*with_choice=*/true));
  LIME_RETURN_IF_ERROR(tokens_.ExpectSymbol(")"));
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseVariable() {
  ExprPtr expr = Make(ExprKind::kVariable);
  expr->text = tokens_.Pop().text;
  if (IsConstantName(expr->text)) {
    expr->kind = ExprKind::kConstant;
    const char first = static_cast<char>(expr->text[0] | 0x20);
    expr->constant = first == 'n' ? Value::None() : Value::Bool(first == 't');
    return expr;
  }
  expr->name = tokens_.IdOf(expr->text);
  tokens_.scopes().Read(expr->name);
  for (MacroSyntax* macro : tokens_.macros()) {
    macro->uses_caller = macro->uses_caller || expr->name == kCaller;
    macro->uses_varargs = macro->uses_varargs || expr->name == kVarargs;
    macro->uses_kwargs = macro->uses_kwargs || expr->name == kKwargs;
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseString() {
  ExprPtr expr = Make(ExprKind::kConstant);
  while (tokens_.current().kind == TokenKind::kString) expr->text.append(tokens_.Pop().text);
  expr->constant = Value::String(&expr->text);
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseNumber() {
  ExprPtr expr = Make(ExprKind::kConstant);
  const Token token = tokens_.Pop();
  if (token.kind == TokenKind::kFloat) {
    expr->constant = Value::Real(ParseFloat(token.text).value_or(0));
    return expr;
  }
  const auto number = ParseInt(token.text, 0);
  if (!number.has_value()) return WrongAt(token.line, "an integer is larger than 127 bits; use a smaller one");
  expr->constant = Value::Integer(*number);
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseBracketList() {
  ExprPtr list = Make(ExprKind::kList);
  tokens_.Pop();
  while (!tokens_.SkipSymbol("]")) {
    if (!list->parts.empty()) {
      LIME_RETURN_IF_ERROR(tokens_.ExpectSymbol(","));
      if (tokens_.SkipSymbol("]")) break;
    }
    LIME_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    list->parts.push_back(std::move(item));
  }
  return list;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseDict() {
  ExprPtr dict = Make(ExprKind::kDict);
  tokens_.Pop();
  while (!tokens_.SkipSymbol("}")) {
    if (!dict->parts.empty()) {
      LIME_RETURN_IF_ERROR(tokens_.ExpectSymbol(","));
      if (tokens_.SkipSymbol("}")) break;
    }
    LIME_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    LIME_RETURN_IF_ERROR(tokens_.ExpectSymbol(":"));
    LIME_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    dict->parts.push_back(std::move(key));
    dict->parts.push_back(std::move(value));
  }
  return dict;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParsePostfix(ExprPtr object) {
  for (int length = 1;; ++length) {
    LIME_RETURN_IF_ERROR(CheckChain(tokens_, length));
    if (tokens_.current().IsSymbol(".")) {
      LIME_ASSIGN_OR_RETURN(object, ParseAttribute(std::move(object)));
    } else if (tokens_.current().IsSymbol("[")) {
      LIME_ASSIGN_OR_RETURN(object, ParseItem(std::move(object)));
    } else if (tokens_.current().IsSymbol("(")) {
      object = Make(ExprKind::kCall, std::move(object));
      LIME_RETURN_IF_ERROR(ParseArguments(*object));
    } else {
      return object;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseAttribute(ExprPtr object) {
  tokens_.Pop();
  if (tokens_.current().kind == TokenKind::kInteger) {  // a.0
    ExprPtr item = Make(ExprKind::kItem, std::move(object));
    LIME_ASSIGN_OR_RETURN(ExprPtr index, ParseNumber());
    item->parts.push_back(std::move(index));
    return item;
  }
  ExprPtr attribute = Make(ExprKind::kAttribute, std::move(object));
  LIME_ASSIGN_OR_RETURN(attribute->text, tokens_.ExpectName("the name of an attribute"));
  return attribute;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseItem(ExprPtr object) {
  const TokenStream::Level level(tokens_);
  LIME_RETURN_IF_ERROR(level.Check());
  tokens_.Pop();
  ExprPtr keys = Make(ExprKind::kTuple);
  while (!tokens_.SkipSymbol("]")) {
    if (!keys->parts.empty()) LIME_RETURN_IF_ERROR(tokens_.ExpectSymbol(","));
    LIME_ASSIGN_OR_RETURN(ExprPtr key, ParseSubscript(nullptr));
    keys->parts.push_back(std::move(key));
  }
  const bool is_slice = std::ranges::any_of(keys->parts, [](const ExprPtr& key) { return key->kind == ExprKind::kSlice; });
  if (is_slice && keys->parts.size() > 1) return WrongAt(keys->line, "a slice stands beside other keys; use one of them");
  if (is_slice) {
    ExprPtr slice = std::move(keys->parts.front());
    slice->parts.front() = std::move(object);
    return slice;
  }
  ExprPtr item = Make(ExprKind::kItem, std::move(object));
  item->parts.push_back(keys->parts.size() == 1 ? std::move(keys->parts.front()) : std::move(keys));
  return item;
}

// One key, or a slice of `object`.
absl::StatusOr<ExprPtr> ExpressionParser::ParseSubscript(ExprPtr object) {
  ExprPtr slice = Make(ExprKind::kSlice, std::move(object));
  ExprPtr bound;
  if (!tokens_.current().IsSymbol(":")) {
    LIME_ASSIGN_OR_RETURN(bound, ParseExpression());
    if (!tokens_.current().IsSymbol(":")) return bound;
  }
  slice->parts.push_back(std::move(bound));
  for (int i = 0; i < 2; ++i) {
    ExprPtr next;
    if (tokens_.SkipSymbol(":")) {
      const Token& token = tokens_.current();
      if (!token.IsSymbol(":") && !token.IsSymbol("]") && !token.IsSymbol(",")) {
        LIME_ASSIGN_OR_RETURN(next, ParseExpression());
      }
    }
    slice->parts.push_back(std::move(next));
  }
  return slice;
}

absl::Status ExpressionParser::ParseArguments(Expr& call) {
  const TokenStream::Level level(tokens_);
  LIME_RETURN_IF_ERROR(level.Check());
  LIME_RETURN_IF_ERROR(tokens_.ExpectSymbol("("));
  for (bool is_first = true; !tokens_.SkipSymbol(")"); is_first = false) {
    if (!is_first) {
      LIME_RETURN_IF_ERROR(tokens_.ExpectSymbol(","));
      if (tokens_.SkipSymbol(")")) break;
    }
    LIME_RETURN_IF_ERROR(ParseArgument(call));
  }
  return absl::OkStatus();
}

absl::Status ExpressionParser::ParseArgument(Expr& call) {
  const int line = tokens_.line();
  if (call.more_named != nullptr) return WrongAt(line, "an argument stands behind \"**\"; put it before");
  if (tokens_.SkipSymbol("**")) {
    LIME_ASSIGN_OR_RETURN(call.more_named, ParseExpression());
  } else if (tokens_.current().kind == TokenKind::kName && tokens_.next().IsSymbol("=")) {
    std::string name = tokens_.Pop().text;
    tokens_.Pop();
    LIME_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    const bool is_twice = std::ranges::any_of(call.named, [&](const auto& other) { return other.first == name; });
    if (is_twice) return WrongAt(line, "the argument \"", Shortened(name), "\" is there twice; remove one");
    call.named.emplace_back(std::move(name), std::move(value));
  } else if (call.more_values != nullptr || (!call.named.empty() && !tokens_.current().IsSymbol("*"))) {
    return WrongAt(line, "an argument without a name stands behind others; put it before them");
  } else if (tokens_.SkipSymbol("*")) {
    LIME_ASSIGN_OR_RETURN(call.more_values, ParseExpression());
  } else {
    LIME_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    call.parts.push_back(std::move(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseFilters(ExprPtr input) {
  bool has_bar = input == nullptr || tokens_.SkipSymbol("|");
  for (int length = 1; has_bar; ++length) {
    LIME_RETURN_IF_ERROR(CheckChain(tokens_, length));
    ExprPtr filter = Make(ExprKind::kFilter, std::move(input));
    LIME_ASSIGN_OR_RETURN(filter->text, tokens_.ExpectName("the name of a filter"));
    if (tokens_.current().IsSymbol("(")) LIME_RETURN_IF_ERROR(ParseArguments(*filter));
    input = std::move(filter);
    has_bar = tokens_.SkipSymbol("|");
  }
  return input;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseFiltersAndTests(ExprPtr input) {
  for (int length = 1;; ++length) {
    LIME_RETURN_IF_ERROR(CheckChain(tokens_, length));
    if (tokens_.current().IsSymbol("|")) {
      LIME_ASSIGN_OR_RETURN(input, ParseFilters(std::move(input)));
    } else if (tokens_.current().IsName("is")) {
      LIME_ASSIGN_OR_RETURN(input, ParseTest(std::move(input)));
    } else if (tokens_.current().IsSymbol("(")) {
      input = Make(ExprKind::kCall, std::move(input));
      LIME_RETURN_IF_ERROR(ParseArguments(*input));
    } else {
      return input;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseTest(ExprPtr input) {
  tokens_.Pop();
  const bool is_negated = tokens_.SkipName("not");
  ExprPtr test = Make(ExprKind::kTest, std::move(input));
  LIME_ASSIGN_OR_RETURN(test->text, tokens_.ExpectName("the name of a test"));
  const Token& token = tokens_.current();
  const bool opens = token.IsSymbol("[") || token.IsSymbol("{") || token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
                     token.kind == TokenKind::kFloat;
  const bool is_word = token.kind == TokenKind::kName && !token.IsName("else") && !token.IsName("or") && !token.IsName("and");
  if (token.IsSymbol("(")) {
    LIME_RETURN_IF_ERROR(ParseArguments(*test));
  } else if (token.IsName("is")) {
    return WrongAt(token.line, "a test stands behind another; join them with \"and\"");
  } else if (opens || is_word) {  // one argument without brackets
    LIME_ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
    LIME_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    test->parts.push_back(std::move(argument));
  }
  return is_negated ? Make(ExprKind::kNot, std::move(test)) : std::move(test);
}

absl::StatusOr<Target> ExpressionParser::ParseTarget(bool with_member) {
  if (!with_member || !tokens_.next().IsSymbol(".")) return ParseTargets();
  Target target;
  LIME_ASSIGN_OR_RETURN(const std::string name, tokens_.ExpectName("the name of a namespace"));
  tokens_.Pop();
  target.name = tokens_.IdOf(name);
  LIME_ASSIGN_OR_RETURN(target.member, tokens_.ExpectName("the name of a member"));
  return target;
}

absl::StatusOr<Target> ExpressionParser::ParseTargets() {
  LIME_ASSIGN_OR_RETURN(Target first, ParseOneTarget());
  if (!tokens_.current().IsSymbol(",")) return first;
  Target several;
  several.parts.push_back(std::move(first));
  while (tokens_.SkipSymbol(",")) {
    if (tokens_.current().kind != TokenKind::kName && !tokens_.current().IsSymbol("(")) break;
    if (tokens_.current().IsName("in")) break;
    LIME_ASSIGN_OR_RETURN(Target next, ParseOneTarget());
    several.parts.push_back(std::move(next));
  }
  return several;
}

absl::StatusOr<Target> ExpressionParser::ParseOneTarget() {
  const TokenStream::Level level(tokens_);
  LIME_RETURN_IF_ERROR(level.Check());
  if (tokens_.SkipSymbol("(")) {
    LIME_ASSIGN_OR_RETURN(Target inside, ParseTargets());
    LIME_RETURN_IF_ERROR(tokens_.ExpectSymbol(")"));
    return inside;
  }
  const int line = tokens_.line();
  LIME_ASSIGN_OR_RETURN(const std::string name, tokens_.ExpectName("the name of a variable"));
  if (IsConstantName(name)) return WrongAt(line, "\"", name, "\" is a constant; assign to another name");
  Target target;
  target.name = tokens_.IdOf(name);
  return target;
}

}  // namespace lime::jinja
