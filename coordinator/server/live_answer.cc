#include "coordinator/server/live_answer.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "coordinator/server/replies.h"

namespace lime {
namespace {

std::string_view FinishWord(GenerationFinish finish) {
  switch (finish) {
    case GenerationFinish::kStop:
      return "stop";
    case GenerationFinish::kLength:
      return "length";
    case GenerationFinish::kToolCalls:
      return "tool_calls";
    case GenerationFinish::kCancelled:
      return "cancelled";
    case GenerationFinish::kError:
      return "error";
  }
  return "error";
}

GenerationFinish FinishOf(AnswerFinish finish) {
  switch (finish) {
    case AnswerFinish::kStop:
      return GenerationFinish::kStop;
    case AnswerFinish::kLength:
      return GenerationFinish::kLength;
    case AnswerFinish::kToolCalls:
      return GenerationFinish::kToolCalls;
  }
  return GenerationFinish::kStop;
}

// Nothing if one of the two did not happen.
std::optional<absl::Duration> Between(ServingClock::time_point from, ServingClock::time_point to) {
  if (from == ServingClock::time_point() || to == ServingClock::time_point()) return std::nullopt;
  return absl::FromChrono(to - from);
}

double Milliseconds(const std::optional<absl::Duration>& duration) {
  return duration ? absl::ToDoubleMilliseconds(*duration) : 0;
}

}  // namespace

ApiError ErrorOf(const absl::Status& status, const AnswerContext& context) {
  const bool is_loss = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
  if (const std::string device = DeviceOf(status); is_loss && !device.empty()) return ClusterUnavailable(device);
  if (absl::IsDeadlineExceeded(status)) return QueueTimeout(absl::ToDoubleSeconds(context.max_wait));
  if (absl::IsCancelled(status) || (absl::IsUnavailable(status) && context.draining)) return Draining();
  return ServerError(std::string(status.message()));
}

// Remembers how each choice ended.
class LiveAnswer::NotingWriter final : public AnswerWriter {
 public:
  NotingWriter(std::unique_ptr<AnswerWriter> writer, size_t choices) : writer_(std::move(writer)), finishes_(choices) {}

  void Add(int64_t choice, ChoiceEvent event) override {
    if (const auto* const end = std::get_if<ChoiceEnd>(&event)) finishes_[static_cast<size_t>(choice)] = FinishOf(end->finish);
    writer_->Add(choice, std::move(event));
  }
  void Finish(const AnswerReport& report) override { writer_->Finish(report); }
  void Fail(const ApiError& error) override { writer_->Fail(error); }
  void Write(std::string& out) override { writer_->Write(out); }
  std::string_view KeepAlive() const override { return writer_->KeepAlive(); }
  bool done() const override { return writer_->done(); }
  std::string_view content_type() const override { return writer_->content_type(); }

  std::optional<GenerationFinish> finish(size_t choice) const { return finishes_[choice]; }

 private:
  const std::unique_ptr<AnswerWriter> writer_;
  std::vector<std::optional<GenerationFinish>> finishes_;
};

class LiveAnswer::Sink final : public RequestSink {
 public:
  Sink(std::shared_ptr<LiveAnswer> answer, size_t choice, int64_t most_tokens)
      : answer_(std::move(answer)), tokens_(*answer_->choices_[choice].tokens), due_(most_tokens) {
    answer_->context_->due_tokens += due_;
  }
  ~Sink() override { answer_->context_->due_tokens -= due_; }

  void OnToken(const ServedToken& token) override {
    if (!token.known) Report(token.at);
    tokens_.Push(token);
    answer_->exchange_->answer().Wake();
  }
  void OnEnd(const RequestEnd& end) override {
    answer_->context_->due_tokens -= std::exchange(due_, 0);
    tokens_.End(end);
    answer_->exchange_->answer().Wake();
  }

 private:
  void Report(ServingClock::time_point at) {
    ServerObserver& observer = answer_->context_->observer;
    if (last_ == ServingClock::time_point())
      observer.OnFirstToken(absl::FromChrono(at - answer_->exchange_->call().at));
    else
      observer.OnToken(absl::FromChrono(at - last_));
    last_ = at;
    if (due_ > 0) --due_, --answer_->context_->due_tokens;
  }

  const std::shared_ptr<LiveAnswer> answer_;
  TokenBuffer& tokens_;
  int64_t due_;
  ServingClock::time_point last_;
};

class LiveAnswer::Source final : public BodySource {
 public:
  explicit Source(std::shared_ptr<LiveAnswer> answer) : answer_(std::move(answer)) {}
  bool Pull(std::string& out) override {
    answer_->writer_->Write(out);
    return answer_->writer_->done();
  }
  void OnSilence(std::string& out) override { out += answer_->writer_->KeepAlive(); }

 private:
  const std::shared_ptr<LiveAnswer> answer_;
};

LiveAnswer::LiveAnswer(std::shared_ptr<AnswerContext> context, std::shared_ptr<Exchange> exchange, const ApiRequest& request,
                       Generation generation)
    : context_(std::move(context)), exchange_(std::move(exchange)), is_stream_(request.stream), generation_(std::move(generation)) {
  const Endpoint endpoint = exchange_->call().route->endpoint;
  AnswerHead head = HeadOf(context_->model, endpoint, request, generation_, absl::ToUnixSeconds(absl::Now()), context_->random);
  writer_ = std::make_unique<NotingWriter>(MakeAnswerWriter(endpoint, request, std::move(head)), generation_.requests.size());
  reader_ = std::make_unique<AnswerReader>(context_->model, generation_, context_->random, *writer_);
  for (const ServingRequest& each : generation_.requests) choices_.push_back({.tokens = std::make_unique<TokenBuffer>(each), .end = {}});
}

LiveAnswer::~LiveAnswer() = default;

absl::Status LiveAnswer::Start() {
  recoveries_before_ = context_->serving.recoveries();
  changes_before_ = context_->serving.changes();
  std::vector<Submission> submissions;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const ServingRequest& request = generation_.requests[i];
    submissions.push_back({request, std::make_shared<Sink>(shared_from_this(), i, request.max_new_tokens)});
  }
  LIME_ASSIGN_OR_RETURN(const RequestId first, context_->serving.SubmitTogether(std::move(submissions)));
  context_->observer.OnAccepted();
  // The end of the request may have come already. Then it comes again, and cancels.
  exchange_->Attach([self = shared_from_this()] { self->Read(); },
                    [self = shared_from_this()](HttpEnd end) { return self->OnHttpEnd(end); });
  HttpResponse reply = HeadReply(writer_->content_type(), is_stream_);
  if (is_stream_)
    exchange_->Stream(std::move(reply), context_->keep_alive, std::make_unique<Source>(shared_from_this()));
  else
    exchange_->Delay(std::move(reply), context_->keep_alive);
  first_ = first;
  if (cancelled_) CancelAll();
  exchange_->answer().Wake();  // tokens that came before
  return absl::OkStatus();
}

void LiveAnswer::Read() {
  if (first_ < 0 || over_) return;
  running_ = std::max(running_, context_->serving.load().running);
  for (size_t i = 0; i < choices_.size() && !over_; ++i) ReadChoice(i);
  if (!over_ && reader_->is_over()) Complete();
}

void LiveAnswer::ReadChoice(size_t index) {
  Choice& choice = choices_[index];
  if (choice.end) return;
  choice.tokens->Take(batch_);
  bool goes_on = true;
  batch_.ForEach([&](const ServedToken& token) {
    if (!token.known) ++choice.generated;
    if (goes_on) goes_on = reader_->OnToken(static_cast<int64_t>(index), token);
  });
  if (batch_.end) return OnChoiceEnd(index, *batch_.end);
  if (!goes_on) Cancel(index);
}

void LiveAnswer::OnChoiceEnd(size_t index, const RequestEnd& end) {
  choices_[index].end = end;
  if (!end.status.ok() && !reader_->has_ended(static_cast<int64_t>(index))) return Fail(end.status);
  reader_->OnEnd(static_cast<int64_t>(index), end);
}

void LiveAnswer::Complete() {
  over_ = true;
  AnswerReport report = reader_->Report();
  const std::shared_ptr<const ServedPlan> plan = context_->plan.get();
  report.numerics_id = plan->numerics_id;
  report.plan_epoch = plan->plan.epoch;
  report.recoveries = context_->serving.recoveries() - recoveries_before_;
  report.plan_changes = context_->serving.changes() - changes_before_;
  report.predicted_ms_per_token = plan->MsPerToken(running_);
  writer_->Finish(report);
  if (is_stream_) return;  // the source is asked next
  HttpResponse reply = HeadReply(writer_->content_type(), false);
  writer_->Write(reply.body);
  exchange_->Send(std::move(reply));
}

void LiveAnswer::Fail(const absl::Status& status) {
  over_ = failed_ = true;
  CancelAll();
  const ApiError error = ErrorOf(status, *context_);
  if (error.status == 500 && context_->on_failure) context_->on_failure(status);
  if (!is_stream_) return exchange_->Fail(error);
  exchange_->NoteError(error.code);
  writer_->Fail(error);
}

void LiveAnswer::Cancel(size_t choice) {
  context_->serving.Cancel(first_ + static_cast<int64_t>(choice));
}

// Start looks at `cancelled_` after it has set `first_`.
void LiveAnswer::CancelAll() {
  cancelled_ = true;
  if (first_ < 0) return;
  for (size_t i = 0; i < choices_.size(); ++i) Cancel(i);
}

std::optional<LoggedAnswer> LiveAnswer::OnHttpEnd(HttpEnd http_end) {
  if (!over_) Read();  // counts what has come
  if (!over_) CancelAll();
  over_ = true;
  const std::vector<SeenChoice> choices = SeenChoices(http_end == HttpEnd::kSent);
  const std::shared_ptr<const ServedPlan> plan = context_->plan.get();
  SeenAnswer seen{.prompt_tokens = generation_.prompt_tokens(),
                  .cached_tokens = 0,
                  .choices = choices,
                  .predicted_per_token = absl::Milliseconds(plan->MsPerToken(running_))};
  LoggedAnswer logged{.prompt_tokens = seen.prompt_tokens,
                      .queue_ms = Milliseconds(choices.front().queue),
                      .first_token_ms = Milliseconds(choices.front().first_token),
                      .ms_per_token = Milliseconds(choices.front().per_token),
                      .predicted_ms_per_token = plan->MsPerToken(running_)};
  const size_t n = choices_.size() / static_cast<size_t>(generation_.prompts);
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i % n == 0 && choices_[i].end) seen.cached_tokens += choices_[i].end->cached_tokens;
    logged.generated_tokens += choices_[i].generated;
  }
  logged.cached_tokens = seen.cached_tokens;
  const auto worst = std::ranges::max_element(choices, {}, &SeenChoice::finish);
  logged.finish = FinishWord(worst->finish >= GenerationFinish::kCancelled ? worst->finish : choices.front().finish);
  context_->observer.OnAnswer(seen);
  return logged;
}

// `sent`: the client has the whole answer. If not, all its choices count as cancelled.
std::vector<SeenChoice> LiveAnswer::SeenChoices(bool sent) const {
  std::vector<SeenChoice> seen;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    SeenChoice& made = seen.emplace_back();
    made.finish = failed_ ? GenerationFinish::kError : GenerationFinish::kCancelled;
    if (sent) made.finish = writer_->finish(i).value_or(made.finish);
    made.generated_tokens = choice.generated;
    if (!choice.end) continue;
    made.queue = Between(choice.end->submitted, choice.end->started);
    made.first_token = Between(exchange_->call().at, choice.end->first_token);
    const std::optional<absl::Duration> later = Between(choice.end->first_token, choice.end->last_token);
    if (later && choice.generated > 1) made.per_token = *later / (choice.generated - 1);
  }
  return seen;
}

}  // namespace lime
