#include "coordinator/server/token_buffer.h"

#include <utility>

namespace lime {

TokenBuffer::TokenBuffer(const ServingRequest& request) {
  const bool scores_prompt = request.sampling.score_top.has_value();
  const size_t most = static_cast<size_t>(request.max_new_tokens) + (scores_prompt ? request.prompt.size() : 0);
  const absl::MutexLock lock(&mutex_);
  waiting_.tokens.reserve(most);
  if (scores_prompt || request.sampling.logprobs) waiting_.scores.reserve(most);
}

void TokenBuffer::Push(const ServedToken& token) {
  const absl::MutexLock lock(&mutex_);
  waiting_.tokens.push_back(
      {.id = token.token, .known = token.known, .has_score = token.score != nullptr, .logits_hash = token.logits_hash, .at = token.at});
  if (token.score != nullptr) waiting_.scores.push_back(*token.score);
}

void TokenBuffer::End(const RequestEnd& end) {
  const absl::MutexLock lock(&mutex_);
  waiting_.end = end;
  waiting_.end->text = {};
}

void TokenBuffer::Take(Batch& batch) {
  const absl::MutexLock lock(&mutex_);
  batch.tokens = waiting_.tokens;
  batch.scores = waiting_.scores;
  batch.end = std::exchange(waiting_.end, std::nullopt);
  waiting_.tokens.clear();
  waiting_.scores.clear();
}

}  // namespace lime
