#include "coordinator/server/exchange.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/server/replies.h"

namespace lime {

void ReportExchange(const ExchangeReports& reports, const Call& call, LoggedRequest logged) {
  const absl::Duration duration = absl::FromChrono(ServingClock::now() - call.at);
  reports.observer.OnExchange({.route = call.pattern(), .method = call.method, .status = logged.status, .duration = duration});
  logged.at = absl::Now();
  logged.id = call.id;
  logged.method = call.method;
  logged.route = call.pattern();
  logged.ms = absl::ToDoubleMilliseconds(duration);
  reports.log.Add(std::move(logged));
}

std::shared_ptr<Exchange> Exchange::Begin(Call call, std::string body, std::shared_ptr<HttpAnswer> answer, const ExchangeReports& reports) {
  std::shared_ptr<Exchange> exchange(new Exchange(std::move(call), std::move(body), std::move(answer), reports));
  exchange->answer_->OnEnd([exchange](HttpEnd end) { exchange->OnEnd(end, std::nullopt); });
  return exchange;
}

HttpResponse Exchange::WithHeaders(HttpResponse response, std::string_view code) {
  response.headers.insert(response.headers.end(), call_.headers.begin(), call_.headers.end());
  const absl::MutexLock lock(&mutex_);
  status_ = response.status;
  if (!code.empty()) code_ = std::string(code);
  return response;
}

void Exchange::Send(HttpResponse response) {
  answer_->Send(WithHeaders(std::move(response), ""));
}

void Exchange::Fail(const ApiError& error) {
  answer_->Send(WithHeaders(ErrorReply(call_.is_ollama, error), error.code));
}

void Exchange::Delay(HttpResponse head, absl::Duration silence) {
  auto head_sent = [weak = weak_from_this(), status = head.status] {
    if (const auto self = weak.lock()) self->OnHeadSent(status);
  };
  answer_->Delay(WithHeaders(std::move(head), ""), silence, std::move(head_sent));
}

void Exchange::OnHeadSent(int status) {
  const absl::MutexLock lock(&mutex_);
  sent_status_ = status;
}

void Exchange::Stream(HttpResponse head, absl::Duration silence, std::unique_ptr<BodySource> source) {
  answer_->Stream(WithHeaders(std::move(head), ""), silence, std::move(source));
}

void Exchange::NoteError(std::string_view code) {
  const absl::MutexLock lock(&mutex_);
  code_ = std::string(code);
}

void Exchange::Note(const std::string& text) {
  const absl::MutexLock lock(&mutex_);
  absl::StrAppend(&note_, note_.empty() ? "" : "; ", text);
}

void Exchange::Attach(std::function<void()> woken, std::function<std::optional<LoggedAnswer>(HttpEnd)> ended) {
  answer_->OnWake(std::move(woken));
  answer_->OnEnd([self = shared_from_this(), ended = std::move(ended)](HttpEnd end) { self->OnEnd(end, ended(end)); });
}

// Comes a second time if the request had ended before Attach.
void Exchange::OnEnd(HttpEnd end, std::optional<LoggedAnswer> answer) {
  gone_ = true;
  LoggedRequest logged{.answer = answer};
  {
    const absl::MutexLock lock(&mutex_);
    if (std::exchange(reported_, true)) return;
    logged.status = sent_status_ != 0 ? sent_status_ : status_ == 0 && end == HttpEnd::kSent ? 500 : status_;
    logged.code = code_;
    logged.note = note_;
  }
  if (reports_.logs_bodies) logged.body = body_;
  ReportExchange(reports_, call_, std::move(logged));
}

}  // namespace lime
