// The streams of chat completions and completions: chunks of one choice each.
#pragma once

#include "coordinator/api/answers/plain_answer.h"

namespace lime {

// A choice: its first chunk, chunks with pieces, one with the reason of its end.
class ChunkStream : public SseAnswer {
 protected:
  ChunkStream(const ApiRequest& request, AnswerHead head, std::string_view object);

  // Of one choice, by what differs between the endpoints. `scores` may be empty.
  virtual void WritePieces(size_t index, std::vector<ChoiceBacklog::Piece> pieces, std::vector<TokenScore> scores, std::string& out) = 0;
  // {"delta": {}} or {"text": ""}.
  virtual Json EmptyPiece() const = 0;

  // One chunk. `piece` has what the choice says; index, logprobs and finish_reason come with it.
  void WriteChunk(size_t index, Json piece, Json logprobs, std::string& out);

 private:
  void WriteWaiting(std::string& out) final;
  void WriteEnd(const AnswerReport& report, std::string& out) final;
  void WriteError(const ApiError& error, std::string& out) final;

  void WriteChoiceEnd(size_t index, const AnswerReport* report, std::string& out);
  Json Choice(size_t index, Json piece, Json logprobs) const;
  Json Chunk(Json choices) const;

  const std::string_view object_;
  std::vector<bool> ended_;  // whose last chunk is written
  size_t open_ = 0;          // the others
};

}  // namespace lime
