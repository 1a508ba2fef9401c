// Log-probabilities of tokens, with their texts.
#pragma once

#include <cstdint>
#include <string>

#include "common/sampling/row_score.h"
#include "coordinator/api/answers/answer_events.h"
#include "coordinator/text/tokenizer.h"

namespace lime {

// Tokens come in the order of the text, beginning with the prompt's. Owner: one answer.
class TokenScores {
 public:
  // REQUIRES: `tokenizer` outlives this object.
  explicit TokenScores(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // The next token, with or without a score. `gives_text`: the text of the answer shows it.
  TokenScore Next(int32_t token, const cpu::RowScore* score, bool gives_text);
  // The same for tokens that nobody asks about.
  void Skip(int32_t token);

 private:
  std::string TextOf(int32_t token) const;

  const Tokenizer& tokenizer_;
  bool is_first_ = true;  // no token that is text has come
};

}  // namespace lime
