// One request from its head to the end of its answer: sends the answer with the headers of the call,
// and reports it once when it has ended.
//
// Threads: any, but for OnEnd of an attached answer, which comes on the server's.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/http/answer.h"
#include "coordinator/api/api_error.h"
#include "coordinator/server/call.h"
#include "coordinator/server/request_log.h"
#include "coordinator/server/server_observer.h"

namespace lime {

// Where ends of requests are reported. All members outlive the exchanges.
struct ExchangeReports {
  RequestLog& log;
  ServerObserver& observer;
  bool logs_bodies = false;
};

// The end of a request that has no Exchange, or of one that has.
void ReportExchange(const ExchangeReports& reports, const Call& call, LoggedRequest logged);

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  // The end is reported, whatever happens to the answer.
  static std::shared_ptr<Exchange> Begin(Call call, std::string body, std::shared_ptr<HttpAnswer> answer, const ExchangeReports& reports);

  const Call& call() const { return call_; }
  const std::string& body() const { return body_; }
  HttpAnswer& answer() { return *answer_; }
  const std::shared_ptr<HttpAnswer>& shared_answer() const { return answer_; }
  // The client has left, or the server has stopped.
  bool is_gone() const { return gone_; }

  // One of the next four: once. See HttpAnswer.
  void Send(HttpResponse response);
  void Fail(const ApiError& error);
  void Delay(HttpResponse head, absl::Duration silence);
  void Stream(HttpResponse head, absl::Duration silence, std::unique_ptr<BodySource> source);

  // An error within an answer whose status has gone out. The log has that status, and the error.
  void NoteError(std::string_view code);
  // More for the line of the log.
  void Note(const std::string& text);
  // From now on the end of the request calls `ended` first; its result is logged. `woken`: see
  // HttpAnswer::OnWake.
  void Attach(std::function<void()> woken, std::function<std::optional<LoggedAnswer>(HttpEnd)> ended);

 private:
  Exchange(Call call, std::string body, std::shared_ptr<HttpAnswer> answer, const ExchangeReports& reports)
      : call_(std::move(call)), body_(std::move(body)), answer_(std::move(answer)), reports_(reports) {}
  HttpResponse WithHeaders(HttpResponse response, std::string_view code);
  void OnHeadSent(int status);
  void OnEnd(HttpEnd end, std::optional<LoggedAnswer> answer);

  const Call call_;
  const std::string body_;
  const std::shared_ptr<HttpAnswer> answer_;
  const ExchangeReports& reports_;
  std::atomic<bool> gone_ = false;
  absl::Mutex mutex_;
  bool reported_ ABSL_GUARDED_BY(mutex_) = false;
  int status_ ABSL_GUARDED_BY(mutex_) = 0;
  int sent_status_ ABSL_GUARDED_BY(mutex_) = 0;  // of the head of Delay; 0: it has not gone out
  std::string code_ ABSL_GUARDED_BY(mutex_), note_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lime
