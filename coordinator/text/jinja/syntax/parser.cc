#include "coordinator/text/jinja/syntax/parser.h"

#include <initializer_list>
#include <utility>

#include "coordinator/text/jinja/syntax/expression_parser.h"

namespace lime::jinja {
namespace {

using Ends = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens), *syntax_), expressions_(tokens_) {}

  absl::StatusOr<std::unique_ptr<const Syntax>> Run() {
    scopes_.Enter();
    LIME_RETURN_IF_ERROR(ParseBlock(syntax_->body, {}));
    syntax_->scope = scopes_.Close();
    return std::move(syntax_);
  }

 private:
  // Statements up to the name of one of the tags `ends`, which stays; without ends, all.
  absl::Status ParseBlock(Block& block, Ends ends) {
    const TokenStream::Level level(tokens_);
    LIME_RETURN_IF_ERROR(level.Check());
    while (tokens_.current().kind != TokenKind::kEnd) {
      const int line = tokens_.line();
      if (tokens_.current().kind == TokenKind::kText) {
        block.push_back({.line = line, .what = TextStatement{tokens_.Pop().text}});
      } else if (tokens_.Pop().kind == TokenKind::kOutputBegin) {
        LIME_ASSIGN_OR_RETURN(ExprPtr value, expressions_.ParseTuple(/*with_choice=*/true));
        LIME_RETURN_IF_ERROR(tokens_.ExpectEnd(TokenKind::kOutputEnd));
        block.push_back({.line = line, .what = OutputStatement{std::move(value)}});
      } else {
        if (AtName(ends)) return absl::OkStatus();
        Statement statement{.line = line};
        LIME_RETURN_IF_ERROR(ParseStatement(statement));
        block.push_back(std::move(statement));
      }
    }
    if (ends.size() == 0) return absl::OkStatus();
    return WrongAt(tokens_.line(), "the template ends inside a block; write {% ", Text(*(ends.end() - 1)), " %}");
  }

  bool AtName(Ends names) const {
    for (const std::string_view name : names) {
      if (tokens_.current().IsName(name)) return true;
    }
    return false;
  }

  // The content of a block whose tag ends here, and its end. Returns the name of the end.
  absl::StatusOr<std::string> ParseBody(Block& body, Ends ends) {
    tokens_.SkipSymbol(":");  // as in Python
    LIME_RETURN_IF_ERROR(tokens_.ExpectEnd(TokenKind::kTagEnd));
    LIME_RETURN_IF_ERROR(ParseBlock(body, ends));
    return tokens_.Pop().text;
  }

  absl::Status ParseWholeBody(Block& body, std::string_view end) {
    LIME_RETURN_IF_ERROR(ParseBody(body, {end}).status());
    return tokens_.ExpectEnd(TokenKind::kTagEnd);
  }

  // A body with variables of its own, `given` among them.
  absl::StatusOr<std::string> ParseScope(Block& body, ScopeId& id, Ends ends, const OpenScope& given = {}) {
    scopes_.Enter(given);
    LIME_ASSIGN_OR_RETURN(std::string end, ParseBody(body, ends));
    id = scopes_.Close();
    return end;
  }

  absl::Status ParseWholeScope(Block& body, ScopeId& id, std::string_view end, const OpenScope& given = {}) {
    LIME_RETURN_IF_ERROR(ParseScope(body, id, {end}, given).status());
    return tokens_.ExpectEnd(TokenKind::kTagEnd);
  }

  // Tells the scope what `target` sets.
  absl::Status Set(const Target& target) {
    if (target.name == kLoop && scopes_.IsInLoop()) return RefuseLoop();
    if (!target.member.empty()) {
      scopes_.Read(target.name);
    } else if (target.parts.empty()) {
      scopes_.Set(target.name);
    }
    for (const Target& part : target.parts) LIME_RETURN_IF_ERROR(Set(part));
    return absl::OkStatus();
  }

  absl::Status RefuseLoop() const { return WrongAt(tokens_.line(), "a loop cannot set \"loop\"; use another name"); }

  static void Give(const Target& target, OpenScope& scope) {
    if (target.parts.empty()) scope.mentioned.insert(target.name);
    for (const Target& part : target.parts) Give(part, scope);
  }

  absl::Status ParseStatement(Statement& statement) {
    using Rule = absl::Status (Parser::*)(Statement&);
    struct Named {
      std::string_view name;
      Rule rule;
    };
    constexpr Named kRules[] = {
        {"if", &Parser::ParseIf},
        {"for", &Parser::ParseFor},
        {"set", &Parser::ParseSet},
        {"macro", &Parser::ParseMacro},
        {"call", &Parser::ParseCall},
        {"filter", &Parser::ParseFilter},
        {"with", &Parser::ParseWith},
        {"generation", &Parser::ParseGeneration},
        {"print", &Parser::ParsePrint},
        {"break", &Parser::ParseBreak},
        {"continue", &Parser::ParseContinue},
    };
    for (const Named& named : kRules) {
      if (tokens_.SkipName(named.name)) return (this->*named.rule)(statement);
    }
    if (tokens_.current().kind != TokenKind::kName) return tokens_.Unexpected("the name of a statement");
    const std::string name = tokens_.current().text;
    if (name.starts_with("end") || name == "else" || name == "elif") {
      return WrongAt(tokens_.line(), "{% ", Shortened(name), " %} ends no block; remove it, or begin its block before");
    }
    return WrongAt(tokens_.line(), "there is no statement \"", Shortened(name),
                   "\"; use those of chat templates: if, for, set, macro, call, filter, with");
  }

  absl::Status ParseIf(Statement& statement) {
    auto& branches = statement.what.emplace<IfStatement>().branches;
    std::string word = "if";
    scopes_.BeginBranch();
    while (word != "endif") {
      auto& branch = branches.emplace_back();
      if (word != "else") {
        LIME_ASSIGN_OR_RETURN(branch.condition, expressions_.ParseTuple(/*with_choice=*/false));
        LIME_ASSIGN_OR_RETURN(word, ParseBody(branch.body, {"elif", "else", "endif"}));
      } else {
        LIME_ASSIGN_OR_RETURN(word, ParseBody(branch.body, {"endif"}));
      }
    }
    scopes_.EndBranch();
    return tokens_.ExpectEnd(TokenKind::kTagEnd);
  }

  absl::Status ParseFor(Statement& statement) {
    auto& loop = statement.what.emplace<ForStatement>();
    LIME_ASSIGN_OR_RETURN(loop.target, expressions_.ParseTarget(/*with_member=*/false));
    if (!tokens_.SkipName("in")) return tokens_.Unexpected("\"in\"");
    LIME_ASSIGN_OR_RETURN(loop.items, expressions_.ParseTuple(/*with_choice=*/false, "recursive"));
    OpenScope given{.is_loop = true};
    Give(loop.target, given);
    if (!given.mentioned.insert(kLoop).second) return RefuseLoop();
    if (tokens_.SkipName("if")) {
      scopes_.Enter(given);
      LIME_ASSIGN_OR_RETURN(loop.condition, expressions_.ParseExpression());
      loop.condition_scope = scopes_.Close();
    }
    loop.is_recursive = tokens_.SkipName("recursive");
    ++loops_;
    auto word = ParseScope(loop.body, loop.scope, {"else", "endfor"}, given);
    --loops_;
    if (!word.ok()) return word.status();
    if (*word == "else") return ParseWholeScope(loop.otherwise, loop.else_scope, "endfor", {.is_loop = true});
    return tokens_.ExpectEnd(TokenKind::kTagEnd);
  }

  absl::Status ParseSet(Statement& statement) {
    LIME_ASSIGN_OR_RETURN(Target target, expressions_.ParseTarget(/*with_member=*/true));
    if (tokens_.SkipSymbol("=")) {
      auto& set = statement.what.emplace<SetStatement>();
      set.target = std::move(target);
      LIME_ASSIGN_OR_RETURN(set.value, expressions_.ParseTuple(/*with_choice=*/true));
      LIME_RETURN_IF_ERROR(Set(set.target));
      return tokens_.ExpectEnd(TokenKind::kTagEnd);
    }
    auto& set = statement.what.emplace<SetBlockStatement>();
    set.target = std::move(target);
    LIME_RETURN_IF_ERROR(Set(set.target));  // before the block, where it is undefined if it is new
    if (tokens_.SkipSymbol("|")) {
      LIME_ASSIGN_OR_RETURN(set.filter, expressions_.ParseFilters(nullptr));
    }
    return ParseWholeScope(set.body, set.scope, "endset");
  }

  // Body and end of a macro or {% call %}, whose scope is open.
  absl::Status ParseMacroBody(MacroSyntax& macro, std::string_view end) {
    macro.body = std::make_unique<Block>();
    const int loops = std::exchange(loops_, 0);
    tokens_.macros().push_back(&macro);
    absl::Status parsed = ParseWholeBody(*macro.body, end);
    tokens_.macros().pop_back();
    loops_ = loops;
    macro.scope = scopes_.Close();
    return parsed;
  }

  absl::Status ParseParameters(MacroSyntax& macro) {
    LIME_RETURN_IF_ERROR(tokens_.ExpectSymbol("("));
    while (!tokens_.SkipSymbol(")")) {
      if (!macro.parameters.empty()) LIME_RETURN_IF_ERROR(tokens_.ExpectSymbol(","));
      Parameter parameter;
      LIME_ASSIGN_OR_RETURN(parameter.text, tokens_.ExpectName("the name of a parameter"));
      parameter.name = tokens_.IdOf(parameter.text);
      scopes_.Read(parameter.name);
      if (tokens_.SkipSymbol("=")) {
        LIME_ASSIGN_OR_RETURN(parameter.fallback, expressions_.ParseExpression());
      } else if (!macro.parameters.empty() && macro.parameters.back().fallback != nullptr) {
        return WrongAt(tokens_.line(), "the parameter \"", Shortened(parameter.text),
                       "\" has no default but stands behind one that has; put it before");
      }
      macro.parameters.push_back(std::move(parameter));
    }
    return absl::OkStatus();
  }

  absl::Status ParseMacro(Statement& statement) {
    auto& definition = statement.what.emplace<MacroStatement>();
    LIME_ASSIGN_OR_RETURN(definition.macro.name, tokens_.ExpectName("the name of a macro"));
    definition.name = tokens_.IdOf(definition.macro.name);
    scopes_.Set(definition.name);
    scopes_.Enter();
    LIME_RETURN_IF_ERROR(ParseParameters(definition.macro));
    return ParseMacroBody(definition.macro, "endmacro");
  }

  absl::Status ParseCall(Statement& statement) {
    auto& call = statement.what.emplace<CallStatement>();
    call.caller.name = "caller";
    const int line = tokens_.line();
    scopes_.Enter();
    if (tokens_.current().IsSymbol("(")) LIME_RETURN_IF_ERROR(ParseParameters(call.caller));
    OpenScope scope = scopes_.Leave();  // the call stands outside
    LIME_ASSIGN_OR_RETURN(call.call, expressions_.ParseExpression());
    scopes_.Enter(std::move(scope));
    if (call.call->kind != ExprKind::kCall) return WrongAt(line, "{% call %} has no call; write {% call NAME() %}");
    return ParseMacroBody(call.caller, "endcall");
  }

  absl::Status ParseFilter(Statement& statement) {
    auto& filter = statement.what.emplace<FilterStatement>();
    LIME_ASSIGN_OR_RETURN(filter.filter, expressions_.ParseFilters(nullptr));
    return ParseWholeScope(filter.body, filter.scope, "endfilter");
  }

  absl::Status ParseWith(Statement& statement) {
    auto& with = statement.what.emplace<WithStatement>();
    OpenScope given;
    while (tokens_.current().kind != TokenKind::kTagEnd) {
      if (!with.targets.empty()) LIME_RETURN_IF_ERROR(tokens_.ExpectSymbol(","));
      LIME_ASSIGN_OR_RETURN(Target target, expressions_.ParseTarget(/*with_member=*/false));
      LIME_RETURN_IF_ERROR(tokens_.ExpectSymbol("="));
      LIME_ASSIGN_OR_RETURN(ExprPtr value, expressions_.ParseExpression());
      Give(target, given);
      with.targets.emplace_back(std::move(target), std::move(value));
    }
    return ParseWholeScope(with.body, with.scope, "endwith", given);
  }

  // Marks what a model wrote, for training. It is part of the text like any other. As in
  // transformers, a loop around it cannot be left from inside.
  absl::Status ParseGeneration(Statement& statement) {
    auto& with = statement.what.emplace<WithStatement>();
    const int loops = std::exchange(loops_, 0);
    absl::Status parsed = ParseWholeScope(with.body, with.scope, "endgeneration");
    loops_ = loops;
    return parsed;
  }

  absl::Status ParsePrint(Statement& statement) {
    LIME_ASSIGN_OR_RETURN(statement.what.emplace<OutputStatement>().value, expressions_.ParseTuple(/*with_choice=*/true));
    return tokens_.ExpectEnd(TokenKind::kTagEnd);
  }

  absl::Status ParseBreak(Statement& statement) {
    statement.what = BreakStatement{};
    return EndOfJump(statement.line, "break");
  }

  absl::Status ParseContinue(Statement& statement) {
    statement.what = ContinueStatement{};
    return EndOfJump(statement.line, "continue");
  }

  absl::Status EndOfJump(int line, std::string_view name) {
    if (loops_ == 0) return WrongAt(line, "{% ", Text(name), " %} is outside of a loop; remove it");
    return tokens_.ExpectEnd(TokenKind::kTagEnd);
  }

  std::unique_ptr<Syntax> syntax_ = std::make_unique<Syntax>();
  TokenStream tokens_;
  NameScopes& scopes_ = tokens_.scopes();
  ExpressionParser expressions_;
  int loops_ = 0;  // around the current token, inside the same macro
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Syntax>> Parse(std::string_view source) {
  LIME_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace lime::jinja
