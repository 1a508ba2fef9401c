#include "coordinator/api/answers/chunk_stream.h"

#include "coordinator/api/answers/answer_json.h"

namespace lime {

ChunkStream::ChunkStream(const ApiRequest& request, AnswerHead head, std::string_view object)
    : SseAnswer(request, std::move(head)), object_(object), ended_(choices().size()), open_(choices().size()) {}

void ChunkStream::WriteWaiting(std::string& out) {
  for (size_t i = 0; i < choices().size(); ++i) {
    ChoiceBacklog& choice = choices()[i];
    if (!choice.begun() || ended_[i]) continue;
    std::vector<ChoiceBacklog::Piece> pieces = choice.TakePieces();
    // Scores go with text, or with the end.
    const bool takes_scores = !pieces.empty() || choice.end();
    WritePieces(i, std::move(pieces), takes_scores ? choice.TakeScores() : std::vector<TokenScore>(), out);
    // The last chunk of all has `lime`, which is known later, unless the counts have a chunk.
    if (choice.end() && (includes_usage_ || open_ > 1)) WriteChoiceEnd(i, nullptr, out);
  }
}

void ChunkStream::WriteEnd(const AnswerReport& report, std::string& out) {
  for (size_t i = 0; i < ended_.size(); ++i) {
    if (!ended_[i]) WriteChoiceEnd(i, &report, out);
  }
  if (includes_usage_) {
    Json chunk = Chunk(Json::array());
    chunk["usage"] = UsageJson(report);
    chunk["lime"] = LimeJson(report);
    AppendSse(chunk, "", out);
  }
  out += kSseDone;
}

void ChunkStream::WriteError(const ApiError& error, std::string& out) {
  out += "data: ";
  out += OpenAiErrorJson(error);
  out += "\n\n";
  out += kSseDone;
}

void ChunkStream::WriteChoiceEnd(size_t index, const AnswerReport* report, std::string& out) {
  const ChoiceBacklog& backlog = choices()[index];
  Json choice = Choice(index, EmptyPiece(), nullptr);
  choice["finish_reason"] = FinishName(backlog.end()->finish);
  AddOurFields(backlog, choice);
  Json chunk = Chunk(Json::array({std::move(choice)}));
  if (report != nullptr) chunk["lime"] = LimeJson(*report);
  AppendSse(chunk, "", out);
  ended_[index] = true;
  --open_;
}

void ChunkStream::WriteChunk(size_t index, Json piece, Json logprobs, std::string& out) {
  AppendSse(Chunk(Json::array({Choice(index, std::move(piece), std::move(logprobs))})), "", out);
}

Json ChunkStream::Choice(size_t index, Json piece, Json logprobs) const {
  Json choice = {{"index", index}};
  for (auto& [key, value] : piece.items()) choice[key] = std::move(value);
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = nullptr;
  return choice;
}

Json ChunkStream::Chunk(Json choices) const {
  Json chunk = {{"id", head().id},
                {"object", object_},
                {"created", head().created},
                {"model", head().model},
                {"system_fingerprint", head().fingerprint},
                {"choices", std::move(choices)}};
  if (includes_usage_) chunk["usage"] = nullptr;
  return chunk;
}

}  // namespace lime
