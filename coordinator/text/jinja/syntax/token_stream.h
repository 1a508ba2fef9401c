// The tokens of a template while they are parsed, and what all parsers share.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "coordinator/text/jinja/syntax/lexer.h"
#include "coordinator/text/jinja/syntax/name_scopes.h"
#include "coordinator/text/jinja/syntax/syntax.h"
#include "coordinator/text/jinja/values/python_text.h"
#include "planner/base/strings.h"

namespace lime::jinja {

class TokenStream {
 public:
  // REQUIRES: the last token is kEnd.
  TokenStream(std::vector<Token> tokens, Syntax& syntax) : tokens_(std::move(tokens)), names_(syntax.names), scopes_(syntax.unset) {
    for (const std::string& name : names_) ids_.emplace(name, static_cast<NameId>(ids_.size()));
  }

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return at_ + 1 < tokens_.size() ? tokens_[at_ + 1] : tokens_[at_]; }
  int line() const { return current().line; }

  // Returns the current token and goes on. The last token stays.
  Token Pop() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }

  bool SkipSymbol(std::string_view symbol) { return current().IsSymbol(symbol) && (Pop(), true); }
  bool SkipName(std::string_view name) { return current().IsName(name) && (Pop(), true); }

  absl::Status ExpectSymbol(std::string_view symbol) {
    return SkipSymbol(symbol) ? absl::OkStatus() : Unexpected(absl::StrCat("\"", Text(symbol), "\""));
  }
  absl::StatusOr<std::string> ExpectName(std::string_view what) {
    if (current().kind != TokenKind::kName) return Unexpected(what);
    return Pop().text;
  }
  absl::Status ExpectEnd(TokenKind end) {
    if (current().kind != end) return Unexpected(end == TokenKind::kTagEnd ? "\"%}\"" : "\"}}\"");
    Pop();
    return absl::OkStatus();
  }

  // The error that something else than `needed` is here.
  absl::Status Unexpected(std::string_view needed) const {
    return WrongAt(line(), Description(), " stands where ", Text(needed), " is needed; correct it");
  }

  // The id of a variable's name.
  NameId IdOf(const std::string& name) {
    const auto [entry, is_new] = ids_.try_emplace(name, static_cast<NameId>(names_.size()));
    if (is_new) names_.push_back(name);
    return entry->second;
  }

  NameScopes& scopes() { return scopes_; }

  // Macros around the current token, outermost first.
  std::vector<MacroSyntax*>& macros() { return macros_; }

  // One level deeper for as long as it lives.
  class Level {
   public:
    explicit Level(TokenStream& stream) : stream_(stream) { ++stream.depth_; }
    ~Level() { --stream_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    absl::Status Check() const {
      if (stream_.depth_ <= kMaxSyntaxDepth) return absl::OkStatus();
      return WrongAt(stream_.line(), "more than ", kMaxSyntaxDepth, " levels are inside each other; split them with {% set %} or macros");
    }

   private:
    TokenStream& stream_;
  };

 private:
  std::string Description() const {
    switch (current().kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kText:
        return "text";
      case TokenKind::kOutputBegin:
        return "\"{{\"";
      case TokenKind::kOutputEnd:
        return "\"}}\"";
      case TokenKind::kTagBegin:
        return "\"{%\"";
      case TokenKind::kTagEnd:
        return "\"%}\"";
      case TokenKind::kString:
        return "a string";
      default:
        return absl::StrCat("\"", Shortened(current().text), "\"");
    }
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  std::vector<std::string>& names_;
  NameScopes scopes_;
  absl::flat_hash_map<std::string, NameId> ids_;
  std::vector<MacroSyntax*> macros_;
};

}  // namespace lime::jinja
