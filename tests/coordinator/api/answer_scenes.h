// Answers for tests: events, and the writer that gets them.
#pragma once

#include <string>
#include <vector>

#include "coordinator/api/answers/answer_writer.h"

namespace lime {

inline AnswerReport SmallReport() {
  return {.prompt_tokens = 12,
          .cached_tokens = 8,
          .completion_tokens = 5,
          .reasoning_tokens = 2,
          .seed = 18446744073709551615u,
          .numerics_id = "cpu-1",
          .plan_epoch = 3,
          .recoveries = 1,
          .plan_changes = 2,
          .queue_ms = 0.25,
          .prompt_ms = 40.1234,
          .ttft_ms = 41,
          .ms_per_token = 7.5,
          .predicted_ms_per_token = 7.25,
          .total_ms = 70,
          .generation_ms = 30};
}

inline AnswerHead SmallHead(std::string id) {
  return {.id = std::move(id), .created = 1721986200, .model = "tiny", .fingerprint = "fp_0123456789abcdef", .first_offsets = {}};
}

inline TokenScore Score(std::string token, double logprob) {
  return {.token = token, .logprob = logprob, .top = {{token, logprob}, {"\xE2\x82", -3.5}}};
}

// Writes after each group of events, as a client does that takes all at once.
class Scene {
 public:
  Scene(Endpoint endpoint, const ApiRequest& request, AnswerHead head) : writer_(MakeAnswerWriter(endpoint, request, std::move(head))) {
    Write("");
  }

  Scene& Say(int64_t choice, std::vector<ChoiceEvent> events) {
    for (ChoiceEvent& event : events) writer_->Add(choice, std::move(event));
    return Write("");
  }
  Scene& Finish(const AnswerReport& report = SmallReport()) {
    writer_->Finish(report);
    return Write("");
  }
  Scene& Fail(const ApiError& error) {
    writer_->Fail(error);
    return Write("");
  }
  Scene& KeepAlive() { return Write(writer_->KeepAlive()); }

  // All bytes so far, with a line between two writes that wrote something.
  const std::string& text() const { return text_; }
  const AnswerWriter& writer() const { return *writer_; }

 private:
  Scene& Write(std::string_view before) {
    std::string out(before);
    writer_->Write(out);
    if (!text_.empty() && !out.empty()) text_ += "----\n";
    text_ += out;
    if (!out.empty() && out.back() != '\n') text_ += '\n';
    return *this;
  }

  std::unique_ptr<AnswerWriter> writer_;
  std::string text_;
};

}  // namespace lime
