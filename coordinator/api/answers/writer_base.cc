#include "coordinator/api/answers/writer_base.h"

#include <algorithm>

#include "coordinator/api/answers/answer_json.h"
#include "planner/base/check.h"

namespace lime {

WriterBase::WriterBase(const ApiRequest& request, AnswerHead head)
    : hashes_(request.hash_logits),
      returns_ids_(request.return_token_ids),
      scores_(request.top_logprobs.has_value()),
      includes_usage_(request.include_usage),
      head_(std::move(head)),
      choices_(static_cast<size_t>(request.choices())) {}

void WriterBase::Add(int64_t choice, ChoiceEvent event) {
  LIME_CHECK(choice >= 0 && choice < static_cast<int64_t>(choices_.size())) << choice;
  LIME_CHECK(!finished()) << "an event after the end of an answer";
  if (failed()) return;
  choices_[static_cast<size_t>(choice)].Add(std::move(event));
}

void WriterBase::Finish(const AnswerReport& report) {
  LIME_CHECK(!finished()) << "an answer ends once";
  if (failed()) return;
  LIME_CHECK(std::ranges::all_of(choices_, [](const ChoiceBacklog& choice) { return choice.end().has_value(); })) << "a choice goes on";
  report_ = report;
}

void WriterBase::Fail(const ApiError& error) {
  if (!finished() && !failed()) error_ = error;
}

void WriterBase::Write(std::string& out) {
  if (done_) return;
  WriteWaiting(out);
  if (error_) WriteError(*error_, out);
  if (report_) WriteEnd(*report_, out);
  done_ = error_ || report_;
}

void WriterBase::AddOurFields(const ChoiceBacklog& backlog, Json& choice) const {
  if (hashes_ && backlog.end()) choice["logits_xxh3"] = HashHex(backlog.end()->logits_hash);
  if (returns_ids_) choice["token_ids"] = backlog.ids();
}

std::unique_ptr<AnswerWriter> MakeAnswerWriter(Endpoint endpoint, const ApiRequest& request, AnswerHead head) {
  switch (endpoint) {
    case Endpoint::kChat:
      return request.stream ? MakeChatStream(request, std::move(head)) : MakeChatAnswer(request, std::move(head));
    case Endpoint::kCompletions:
      return request.stream ? MakeCompletionStream(request, std::move(head)) : MakeCompletionAnswer(request, std::move(head));
    case Endpoint::kResponses:
      return MakeResponsesWriter(request, std::move(head));
    case Endpoint::kOllamaChat:
    case Endpoint::kOllamaGenerate:
      return MakeOllamaWriter(endpoint, request, std::move(head));
    default:
      LIME_CHECK(false) << static_cast<int>(endpoint);
      return nullptr;
  }
}

}  // namespace lime
