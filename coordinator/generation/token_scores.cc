#include "coordinator/generation/token_scores.h"

namespace lime {

TokenScore TokenScores::Next(int32_t token, const cpu::RowScore* score, bool gives_text) {
  TokenScore made = {.token = TextOf(token), .logprob = std::nullopt, .top = {}, .is_in_text = gives_text};
  if (score != nullptr) {
    made.logprob = score->logprob;
    const double log_sum = score->log_sum.value_or(0);
    for (const auto& [id, logit] : score->top) made.top.emplace_back(TextOf(id), logit - log_sum);
  }
  Skip(token);
  return made;
}

void TokenScores::Skip(int32_t token) {
  if (!tokenizer_.IsSpecial(token)) is_first_ = false;
}

// The name of a special token. The first token of a text may be decoded without its blank.
std::string TokenScores::TextOf(int32_t token) const {
  if (tokenizer_.IsSpecial(token)) return std::string(tokenizer_.IdToText(token));
  std::string_view text = tokenizer_.TokenBytes(token, is_first_);
  const std::string& stripped = tokenizer_.strip().content;
  for (int64_t i = 0; is_first_ && i < tokenizer_.strip().count && !stripped.empty() && text.starts_with(stripped); ++i) {
    text.remove_prefix(stripped.size());
  }
  return std::string(text);
}

}  // namespace lime
