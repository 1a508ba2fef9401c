#include "coordinator/text/answer_text.h"

namespace lime {

AnswerText::AnswerText(const Tokenizer& tokenizer, const std::vector<std::string>& stop_strings, std::span<const int32_t> prompt)
    : detokenizer_(tokenizer), stop_strings_(stop_strings) {
  for (const int32_t token : prompt) detokenizer_.Push(token);
}

std::string_view AnswerText::Finish() {
  rest_.clear();
  if (stopped()) return rest_;
  rest_ = stop_strings_.Push(detokenizer_.Finish());
  rest_ += stop_strings_.Finish();
  return rest_;
}

}  // namespace lime
