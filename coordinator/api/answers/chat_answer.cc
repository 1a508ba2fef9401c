// Answers of /v1/chat/completions.
#include "coordinator/api/answers/answer_json.h"
#include "coordinator/api/answers/chunk_stream.h"

namespace lime {
namespace {

using Piece = ChoiceBacklog::Piece;
using Kind = Piece::Kind;

Json LogprobsJson(const std::vector<TokenScore>& scores) {
  return {{"content", ScoresJson(scores)}, {"refusal", nullptr}};
}

Json NewCall(const Piece& begin) {
  return {{"id", begin.text}, {"type", "function"}, {"function", {{"name", begin.name}, {"arguments", ""}}}};
}

class ChatStream : public ChunkStream {
 public:
  ChatStream(const ApiRequest& request, AnswerHead head)
      : ChunkStream(request, std::move(head), "chat.completion.chunk"), begun_(choices().size()), calls_(choices().size()) {}

 private:
  void WritePieces(size_t index, std::vector<Piece> pieces, std::vector<TokenScore> scores, std::string& out) override {
    if (!begun_[index]) WriteChunk(index, {{"delta", {{"role", "assistant"}, {"content", ""}}}}, nullptr, out);
    begun_[index] = true;
    Json logprobs;
    if (!scores.empty()) logprobs = LogprobsJson(scores);
    for (const Piece& piece : pieces) {
      if (piece.kind == Kind::kCallEnd) continue;
      WriteChunk(index, {{"delta", Delta(index, piece)}}, std::exchange(logprobs, Json()), out);
    }
    if (!logprobs.is_null()) WriteChunk(index, {{"delta", {{"content", ""}}}}, std::move(logprobs), out);
  }

  Json EmptyPiece() const override { return {{"delta", Json::object()}}; }

  Json Delta(size_t index, const Piece& piece) {
    if (piece.kind == Kind::kContent) return {{"content", piece.text}};
    if (piece.kind == Kind::kReasoning) return {{"reasoning_content", piece.text}};
    const bool begins = piece.kind == Kind::kCallBegin;
    Json call = {{"index", begins ? calls_[index]++ : calls_[index] - 1}};
    if (begins) {
      call.update(NewCall(piece));
    } else {
      call["function"] = Json{{"arguments", piece.text}};
    }
    return {{"tool_calls", Json::array({std::move(call)})}};
  }

  std::vector<bool> begun_;     // whose first chunk is written
  std::vector<int64_t> calls_;  // begun so far
};

class ChatAnswer : public PlainAnswer {
 public:
  ChatAnswer(const ApiRequest& request, AnswerHead head) : PlainAnswer(request, std::move(head)) {}

 private:
  Json Answer(const AnswerReport& report) override {
    Json answer = {{"id", head().id},
                   {"object", "chat.completion"},
                   {"created", head().created},
                   {"model", head().model},
                   {"system_fingerprint", head().fingerprint},
                   {"choices", Json::array()}};
    for (size_t i = 0; i < choices().size(); ++i) answer["choices"].push_back(Choice(i));
    answer["usage"] = UsageJson(report);
    answer["lime"] = LimeJson(report);
    return answer;
  }

  Json Choice(size_t index) {
    ChoiceBacklog& backlog = choices()[index];
    Json choice = {{"index", index}, {"message", Message(backlog.TakePieces())}, {"logprobs", nullptr}};
    if (scores_) choice["logprobs"] = LogprobsJson(backlog.TakeScores());
    choice["finish_reason"] = FinishName(backlog.end()->finish);
    AddOurFields(backlog, choice);
    return choice;
  }

  static Json Message(const std::vector<Piece>& pieces) {
    std::string content, reasoning;
    Json calls = Json::array();
    for (const Piece& piece : pieces) {
      if (piece.kind == Kind::kContent) content += piece.text;
      if (piece.kind == Kind::kReasoning) reasoning += piece.text;
      if (piece.kind == Kind::kCallBegin) calls.push_back(NewCall(piece));
      if (piece.kind == Kind::kArguments) calls.back()["function"]["arguments"] = piece.text;
    }
    Json message = {{"role", "assistant"}, {"content", content}, {"refusal", nullptr}};
    if (content.empty() && !calls.empty()) message["content"] = nullptr;
    if (!reasoning.empty()) message["reasoning_content"] = reasoning;
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    return message;
  }
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeChatStream(const ApiRequest& request, AnswerHead head) {
  return std::make_unique<ChatStream>(request, std::move(head));
}

std::unique_ptr<AnswerWriter> MakeChatAnswer(const ApiRequest& request, AnswerHead head) {
  return std::make_unique<ChatAnswer>(request, std::move(head));
}

}  // namespace lime
