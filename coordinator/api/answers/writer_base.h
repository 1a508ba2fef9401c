// What the writers of all endpoints share: the waiting events, and how an answer ends.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/answers/answer_writer.h"
#include "coordinator/api/answers/choice_backlog.h"

namespace lime {

class WriterBase : public AnswerWriter {
 public:
  void Add(int64_t choice, ChoiceEvent event) final;
  void Finish(const AnswerReport& report) final;
  void Fail(const ApiError& error) final;
  void Write(std::string& out) final;
  bool done() const final { return done_; }

 protected:
  WriterBase(const ApiRequest& request, AnswerHead head);

  // Appends what waits. May also be called where nothing does.
  virtual void WriteWaiting(std::string& out) = 0;
  // The end, after everything that waited: once, after Finish.
  virtual void WriteEnd(const AnswerReport& report, std::string& out) = 0;
  // The same, after Fail.
  virtual void WriteError(const ApiError& error, std::string& out) = 0;

  const AnswerHead& head() const { return head_; }
  std::vector<ChoiceBacklog>& choices() { return choices_; }
  bool finished() const { return report_.has_value(); }
  bool failed() const { return error_.has_value(); }

  // What of the request changes the answer.
  const bool hashes_, returns_ids_, scores_, includes_usage_;

  // logits_xxh3 and token_ids, where they are asked for.
  void AddOurFields(const ChoiceBacklog& backlog, Json& choice) const;

 private:
  const AnswerHead head_;
  std::vector<ChoiceBacklog> choices_;
  std::optional<AnswerReport> report_;
  std::optional<ApiError> error_;
  bool done_ = false;
};

// Of each endpoint, streamed or not.
std::unique_ptr<AnswerWriter> MakeChatStream(const ApiRequest& request, AnswerHead head);
std::unique_ptr<AnswerWriter> MakeChatAnswer(const ApiRequest& request, AnswerHead head);
std::unique_ptr<AnswerWriter> MakeCompletionStream(const ApiRequest& request, AnswerHead head);
std::unique_ptr<AnswerWriter> MakeCompletionAnswer(const ApiRequest& request, AnswerHead head);
std::unique_ptr<AnswerWriter> MakeResponsesWriter(const ApiRequest& request, AnswerHead head);
std::unique_ptr<AnswerWriter> MakeOllamaWriter(Endpoint endpoint, const ApiRequest& request, AnswerHead head);

}  // namespace lime
