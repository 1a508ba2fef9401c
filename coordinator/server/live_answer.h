// An answer that is being generated: tokens come from Serving, bytes go to the client.
//
//   sinks (thread of Serving) ─► TokenBuffers ─► Read ─► AnswerReader ─► AnswerWriter ─► Pull, or Send at the end
//                        └────── HttpAnswer::Wake ─► (thread of the server)
//
// Tokens are read as they come, also while the client takes nothing, because the reader finds stop
// strings and the ends of calls. They become JSON when the client takes more.
//
// Threads: Start on the one that tokenizes; all else on the server's.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/api/answers/answer_writer.h"
#include "coordinator/api/api_request.h"
#include "coordinator/generation/answer_reader.h"
#include "coordinator/generation/generation.h"
#include "coordinator/server/exchange.h"
#include "coordinator/server/served_plan.h"
#include "coordinator/server/token_buffer.h"
#include "coordinator/serving/serving.h"

namespace lime {

// What answers are made with. Answers and the sinks of their requests hold it, since Serving lets go of
// a sink only after its last token. All that it refers to outlives both.
struct AnswerContext {
  const ServedModel& model;
  Serving& serving;
  const PlanInUse& plan;
  ServerObserver& observer;
  std::function<uint64_t()> random;  // 64 random bits.  Thread: any
  absl::Duration keep_alive = absl::Seconds(10);
  absl::Duration max_wait = absl::Seconds(600);
  // Called with a failure after which Serving answers nothing any more. May be empty.  Thread: any
  std::function<void(const absl::Status&)> on_failure = nullptr;
  std::atomic<bool> draining = false;
  std::atomic<int64_t> due_tokens = 0;  // that accepted requests may still generate
};

// The error of a request that Serving refused or ended, as its client reads it.
ApiError ErrorOf(const absl::Status& status, const AnswerContext& context);

class LiveAnswer : public std::enable_shared_from_this<LiveAnswer> {
 public:
  LiveAnswer(std::shared_ptr<AnswerContext> context, std::shared_ptr<Exchange> exchange, const ApiRequest& request, Generation generation);
  ~LiveAnswer();

  // Submits its requests. The status goes out at once for a stream, and otherwise after a silence.
  // An error, see Serving::SubmitTogether: nothing was sent, and this object is of no further use.
  absl::Status Start();
  const Generation& generation() const { return generation_; }

 private:
  class Sink;
  class Source;
  class NotingWriter;
  struct Choice {
    std::unique_ptr<TokenBuffer> tokens;
    std::optional<RequestEnd> end;
    int64_t generated = 0;
  };

  void Read();
  void ReadChoice(size_t index);
  void OnChoiceEnd(size_t index, const RequestEnd& end);
  void Complete();
  void Fail(const absl::Status& status);
  void Cancel(size_t choice);
  void CancelAll();
  std::optional<LoggedAnswer> OnHttpEnd(HttpEnd end);
  std::vector<SeenChoice> SeenChoices(bool sent) const;

  const std::shared_ptr<AnswerContext> context_;
  const std::shared_ptr<Exchange> exchange_;
  const bool is_stream_;
  const Generation generation_;
  std::unique_ptr<NotingWriter> writer_;
  std::unique_ptr<AnswerReader> reader_;
  std::vector<Choice> choices_;
  TokenBuffer::Batch batch_;
  int64_t recoveries_before_ = 0, changes_before_ = 0;
  int64_t running_ = 1;              // the most requests that ran beside it, with it; for the prediction
  std::atomic<int64_t> first_ = -1;  // the id of its first request; -1: not submitted yet
  std::atomic<bool> cancelled_ = false;
  bool over_ = false;    // nothing more is read
  bool failed_ = false;  // an error was sent
};

}  // namespace lime
