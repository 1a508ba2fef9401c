// Tokens of all choices become the events of an AnswerWriter.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "coordinator/api/answers/answer_writer.h"
#include "coordinator/generation/choice_reader.h"
#include "coordinator/generation/generation.h"
#include "coordinator/generation/served_model.h"
#include "coordinator/serving/serving_request.h"

namespace lime {

// Serving calls its sinks on its own thread; they copy what comes, and the owner of this object
// passes it on. ServedToken::text is not used.
//
// Owner: one thread, that of the writer.
class AnswerReader {
 public:
  // `random`: 64 random bits, for the ids of calls. Adds the text of the prompt to the writer, where
  // it is asked for. Make it before the requests of `generation` go to Serving.
  // REQUIRES: `model`, `generation` and `writer` outlive this object.
  AnswerReader(const ServedModel& model, const Generation& generation, const std::function<uint64_t()>& random, AnswerWriter& writer);

  // The next token of the choice's request. Returns false if the choice needs no more: Cancel its
  // request then. Does nothing for a choice that has ended.
  bool OnToken(int64_t choice, const ServedToken& token);
  // The end of its request. Where `end.status` is not OK and the choice has not ended, the answer
  // has failed: tell the writer, not this object.
  // REQUIRES: end.status is OK, or has_ended(choice)
  void OnEnd(int64_t choice, const RequestEnd& end);

  bool has_ended(int64_t choice) const { return choices_[static_cast<size_t>(choice)]->has_ended(); }
  // All requests have ended; a request that was cancelled does so within a step. Now Finish the
  // writer.
  bool is_over() const { return running_ == 0; }
  // Counts, seed and times. The caller adds numerics_id, plan_epoch, recoveries, plan_changes and
  // predicted_ms_per_token.  REQUIRES: is_over()
  AnswerReport Report() const;

 private:
  void AddTokens(AnswerReport& report) const;
  void AddTimes(AnswerReport& report) const;

  const int64_t prompts_;
  const int64_t prompt_tokens_;
  const uint64_t seed_;
  const bool has_hash_state_;
  std::vector<std::unique_ptr<ChoiceReader>> choices_;
  std::vector<RequestEnd> ends_;  // without text
  int64_t running_ = 0;           // requests
};

}  // namespace lime
