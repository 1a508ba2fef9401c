#include "coordinator/api/answers/plain_answer.h"

#include "coordinator/api/answers/answer_json.h"
#include "planner/base/json_text.h"

namespace lime {

void PlainAnswer::WriteEnd(const AnswerReport& report, std::string& out) {
  out += JsonText(Answer(report));
}

void PlainAnswer::WriteError(const ApiError& error, std::string& out) {
  out += OpenAiErrorJson(error);
}

std::string_view SseAnswer::KeepAlive() const {
  return kSseKeepAlive;
}

}  // namespace lime
