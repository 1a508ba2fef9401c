#include "coordinator/api/answers/choice_backlog.h"

#include <utility>

#include "coordinator/text/unicode/utf8.h"
#include "planner/base/check.h"

namespace lime {
namespace {

template <typename... F>
struct Cases : F... {
  using F::operator()...;
};
template <typename... F>
Cases(F...) -> Cases<F...>;

}  // namespace

void ChoiceBacklog::Add(ChoiceEvent event) {
  LIME_CHECK(!end_) << "an event after the end of a choice";
  begun_ = true;
  const Cases add = {
      [&](ContentPiece& piece) { AddText(Piece::Kind::kContent, std::move(piece.text)); },
      [&](ReasoningPiece& piece) { AddText(Piece::Kind::kReasoning, std::move(piece.text)); },
      [&](CallBegin& call) {
        CloseCall();
        in_call_ = true;
        pieces_.push_back({Piece::Kind::kCallBegin, std::move(call.id), std::move(call.name)});
      },
      [&](CallArguments& piece) {
        LIME_CHECK(in_call_) << "arguments without a call";
        AddText(Piece::Kind::kArguments, std::move(piece.text));
      },
      [&](CallEnd&) { CloseCall(); },
      [&](TokenScore& score) { scores_.push_back(std::move(score)); },
      [&](TokenId& token) { ids_.push_back(token.id); },
      [&](ChoiceEnd& end) {
        CloseCall();
        end_ = end;
      },
  };
  std::visit(add, event);
}

void ChoiceBacklog::AddText(Piece::Kind kind, std::string text) {
  if (text.empty()) return;
  if (kind != Piece::Kind::kArguments) CloseCall();
  if (!pieces_.empty() && pieces_.back().kind == kind) {
    pieces_.back().text += text;
  } else {
    pieces_.push_back({kind, std::move(text), {}});
  }
}

void ChoiceBacklog::CloseCall() {
  if (in_call_) pieces_.push_back({Piece::Kind::kCallEnd, {}, {}});
  in_call_ = false;
}

std::vector<ChoiceBacklog::Piece> ChoiceBacklog::TakePieces() {
  std::vector<Piece> taken = std::exchange(pieces_, {});
  if (taken.empty()) return taken;
  std::string& last = taken.back().text;
  const bool may_continue = !end_ && taken.back().kind != Piece::Kind::kCallBegin;
  const size_t open = may_continue ? IncompleteUtf8Suffix(last) : 0;
  if (open > 0) {
    pieces_.push_back({taken.back().kind, last.substr(last.size() - open), {}});
    last.resize(last.size() - open);
    if (last.empty()) taken.pop_back();
  }
  for (Piece& piece : taken) {
    if (IsUtf8(piece.text)) continue;
    std::string lossy;
    AppendLossyUtf8(piece.text, lossy);
    piece.text = std::move(lossy);
  }
  return taken;
}

std::vector<TokenScore> ChoiceBacklog::TakeScores() {
  return std::exchange(scores_, {});
}

}  // namespace lime
