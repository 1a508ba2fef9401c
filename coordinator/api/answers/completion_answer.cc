// Answers of /v1/completions.
#include "coordinator/api/answers/answer_json.h"
#include "coordinator/api/answers/chunk_stream.h"

namespace lime {
namespace {

// A completion knows no calls and no thinking: all text is its text.
std::string TextOf(const std::vector<ChoiceBacklog::Piece>& pieces) {
  std::string text;
  for (const ChoiceBacklog::Piece& piece : pieces) {
    if (piece.kind != ChoiceBacklog::Piece::Kind::kCallBegin) text += piece.text;
  }
  return text;
}

std::vector<int64_t> Offsets(const AnswerHead& head, size_t choices) {
  std::vector<int64_t> offsets = head.first_offsets;
  offsets.resize(choices);
  return offsets;
}

class CompletionStream : public ChunkStream {
 public:
  CompletionStream(const ApiRequest& request, AnswerHead head)
      : ChunkStream(request, std::move(head), "text_completion"), offsets_(Offsets(this->head(), choices().size())) {}

 private:
  void WritePieces(size_t index, std::vector<ChoiceBacklog::Piece> pieces, std::vector<TokenScore> scores, std::string& out) override {
    const std::string text = TextOf(pieces);
    if (text.empty() && scores.empty()) return;
    Json logprobs;
    if (!scores.empty()) logprobs = OldScoresJson(scores, offsets_[index]);
    WriteChunk(index, {{"text", text}}, std::move(logprobs), out);
  }

  Json EmptyPiece() const override { return {{"text", ""}}; }

  std::vector<int64_t> offsets_;  // of the next token of each choice
};

class CompletionAnswer : public PlainAnswer {
 public:
  CompletionAnswer(const ApiRequest& request, AnswerHead head) : PlainAnswer(request, std::move(head)) {}

 private:
  Json Answer(const AnswerReport& report) override {
    Json answer = {{"id", head().id},
                   {"object", "text_completion"},
                   {"created", head().created},
                   {"model", head().model},
                   {"system_fingerprint", head().fingerprint},
                   {"choices", Json::array()}};
    std::vector<int64_t> offsets = Offsets(head(), choices().size());
    for (size_t i = 0; i < choices().size(); ++i) {
      ChoiceBacklog& backlog = choices()[i];
      Json choice = {{"index", i}, {"text", TextOf(backlog.TakePieces())}, {"logprobs", nullptr}};
      if (scores_) choice["logprobs"] = OldScoresJson(backlog.TakeScores(), offsets[i]);
      choice["finish_reason"] = FinishName(backlog.end()->finish);
      AddOurFields(backlog, choice);
      answer["choices"].push_back(std::move(choice));
    }
    answer["usage"] = UsageJson(report);
    answer["lime"] = LimeJson(report);
    return answer;
  }
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeCompletionStream(const ApiRequest& request, AnswerHead head) {
  return std::make_unique<CompletionStream>(request, std::move(head));
}

std::unique_ptr<AnswerWriter> MakeCompletionAnswer(const ApiRequest& request, AnswerHead head) {
  return std::make_unique<CompletionAnswer>(request, std::move(head));
}

}  // namespace lime
