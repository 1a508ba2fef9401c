#include "coordinator/serving/serving.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace lime {
namespace {

std::optional<ClusterRun::Survival> With(std::optional<ClusterRun::Survival> survival, const std::atomic<bool>& stop) {
  if (survival) survival->install.cancelled = &stop;
  return survival;
}

json_schema::VocabularyPtr GivenTo(Devices& devices, json_schema::VocabularyPtr vocabulary) {
  devices.UseVocabulary(vocabulary);
  return vocabulary;
}

}  // namespace

Serving::Serving(Devices& devices, Options options)
    : devices_(devices),
      tokenizer_(options.tokenizer),
      vocabulary_(GivenTo(devices, std::move(options.vocabulary))),
      vocab_size_(devices.plan().vocab_size),
      short_positions_(options.short_positions),
      run_(devices, With(std::move(options.survival), stop_), std::move(options.levels), OwnerOfRun(options.outlives_failures),
           options.prompt_cache),
      queue_(options.queue, devices.plan().sequences),
      limits_(run_.limits()) {
  run_.set_pace(options.pace);
  thread_ = std::thread([this] { Serve(); });
}

absl::Status Serving::CheckSampling(const RequestSampling& sampling) const {
  LIME_RETURN_IF_ERROR(ValidateSamplingParams(sampling.params));
  for (const LogitBias& each : sampling.params.logit_bias) {
    if (each.id >= vocab_size_) return Invalid("id ", each.id, " of logit_bias is outside the model's ids 0 to ", vocab_size_ - 1);
  }
  if (sampling.logprobs && (*sampling.logprobs < 0 || *sampling.logprobs > kMostLogprobs))
    return Invalid("log-probabilities of ", *sampling.logprobs, " ids were asked for, need 0 to ", kMostLogprobs);
  if (!sampling.format.empty() && vocabulary_ == nullptr)
    return absl::InvalidArgumentError("a format was given, but there is no vocabulary to hold the answer to it");
  return absl::OkStatus();
}

Serving::~Serving() {
  (void)Drain(absl::InfinitePast());
  thread_.join();
}

ClusterRun::Owner Serving::OwnerOfRun(bool outlives_failures) {
  ClusterRun::Owner owner = {.at_border = [this] { return AtBorder(); },
                             .on_start =
                                 [this](RequestId request) {
                                   RequestEnd& end = active_.at(request)->end;
                                   if (end.started != ServingClock::time_point()) return;  // it is computed again
                                   end.started = ServingClock::now();
                                   absl::MutexLock lock(&mutex_);
                                   queue_.Start(request);
                                 },
                             .on_admit =
                                 [this](RequestId request, int64_t computed) {
                                   Active& active = *active_.at(request);
                                   if (!std::exchange(active.admitted, true)) active.end.cached_tokens = computed;
                                 },
                             .on_prompt = [this](RequestId request, double share) { active_.at(request)->sink->OnPrompt(share); },
                             .on_plan =
                                 [this] {
                                   absl::MutexLock lock(&mutex_);
                                   limits_ = run_.limits();
                                   queue_.set_slots(devices_.plan().sequences);
                                 }};
  if (outlives_failures) owner.on_give_up = [this](const absl::Status& why) { GiveUp(why); };
  return owner;
}

absl::Status Serving::Check(const ServingRequest& request) const {
  LIME_RETURN_IF_ERROR(CheckSampling(request.sampling));
  if (tokenizer_ == nullptr && !request.stop_strings.empty())
    return absl::InvalidArgumentError("stop strings were given, but there is no tokenizer to turn tokens into text");
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] >= 0 && request.prompt[i] < vocab_size_) continue;
    return Invalid("id ", request.prompt[i], " of the prompt, number ", i, ", is outside the model's ids 0 to ", vocab_size_ - 1);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Serving::Active>> Serving::Make(Submission submission) {
  ServingRequest& request = submission.request;
  LIME_RETURN_IF_ERROR(Check(request));
  auto active = std::make_unique<Active>();
  active->sink = std::move(submission.sink);
  active->request = {.prompt = std::move(request.prompt),
                     .max_new_tokens = request.max_new_tokens,
                     .end_tokens = std::move(request.end_tokens),
                     .cache_prompt = request.cache_prompt,
                     .cache_group = request.cache_group};
  active->sampling = std::move(request.sampling);
  LIME_RETURN_IF_ERROR(OrderWriter::Check(active->request, ClusterRun::LogitsFor(active->sampling), limits()));
  const int64_t positions = std::ssize(active->request.prompt) + active->request.max_new_tokens;
  if (short_positions_ > 0 && positions > short_positions_) active->request.cache_group = -1 - active->request.cache_group;
  if (const std::string& format = active->sampling.format; !format.empty()) {
    LIME_ASSIGN_OR_RETURN(active->format, formats_.Add(format, json_schema::GrammarOptions::For(*vocabulary_)));
  }
  if (tokenizer_ != nullptr && request.max_new_tokens > 0) active->text.emplace(*tokenizer_, request.stop_strings, active->request.prompt);
  active->end.submitted = ServingClock::now();
  return active;
}

absl::StatusOr<RequestId> Serving::Submit(ServingRequest request, std::shared_ptr<RequestSink> sink) {
  std::vector<Submission> one;
  one.push_back({std::move(request), std::move(sink)});
  return SubmitTogether(std::move(one));
}

absl::StatusOr<RequestId> Serving::SubmitTogether(std::vector<Submission> submissions) {
  std::vector<std::unique_ptr<Active>> made;
  for (Submission& submission : submissions) {
    LIME_ASSIGN_OR_RETURN(std::unique_ptr<Active> active, Make(std::move(submission)));
    made.push_back(std::move(active));
  }
  RequestId first = 0;
  {
    absl::MutexLock lock(&mutex_);
    LIME_RETURN_IF_ERROR(queue_.Arrive(next_, absl::Now(), std::ssize(made)));
    first = next_;
    for (std::unique_ptr<Active>& active : made) {
      active->id = next_++;
      arrived_.push_back(std::move(active));
    }
  }
  run_.Wake();
  return first;
}

void Serving::Cancel(RequestId request) {
  {
    absl::MutexLock lock(&mutex_);
    queue_.Cancel(request);
  }
  run_.Wake();
}

absl::Status Serving::Drain(absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    queue_.Drain();
  }
  run_.Wake();
  if (!over_.WaitForNotificationWithDeadline(deadline)) {
    stop_ = true;
    run_.Wake();
    over_.WaitForNotification();
  }
  absl::MutexLock lock(&mutex_);
  return over_with_;
}

OrderWriter::RequestLimits Serving::limits() const {
  absl::MutexLock lock(&mutex_);
  return limits_;
}

Serving::Load Serving::load() const {
  absl::MutexLock lock(&mutex_);
  return {.waiting = queue_.waiting(), .running = queue_.running()};
}

// ---- The thread

void Serving::Serve() {
  absl::Status status = run_.Run([this](const ClusterRun::Token& token) { return OnToken(token); }, &stop_);
  {
    absl::MutexLock lock(&mutex_);
    const int64_t remaining = queue_.waiting() + queue_.running();
    if (stop_) status = absl::OkStatus();  // an error after the stop is not the reason for the end
    if (stop_ && remaining > 0)
      status = absl::DeadlineExceededError(
          absl::StrCat(remaining, remaining == 1 ? " request was" : " requests were", " cancelled at the deadline"));
    queue_.Close(status.ok() ? absl::UnavailableError("no more requests are accepted") : status);
    over_with_ = status;
    std::ranges::move(arrived_, std::back_inserter(beginning_));
    arrived_.clear();
  }
  EndAll(stop_ ? absl::CancelledError("cancelled: all requests were stopped") : status);
  over_.Notify();
}

absl::Time Serving::AtBorder() {
  std::vector<ServeQueue::Ending> due;
  {
    absl::MutexLock lock(&mutex_);
    std::swap(arrived_, beginning_);
    due = queue_.Due(absl::Now());
  }
  for (std::unique_ptr<Active>& active : beginning_) Begin(std::move(active));
  beginning_.clear();
  for (ServeQueue::Ending& ending : due) {
    if (!active_.contains(ending.request)) continue;  // it was refused just now
    run_.Stop(ending.request);
    End(ending.request, FinishReason::kInterrupted, std::move(ending.why));
  }
  absl::MutexLock lock(&mutex_);
  if (queue_.drained()) stop_ = true;
  return queue_.NextDue();
}

// The plan may have changed since the request was checked, so Add can refuse it.
void Serving::Begin(std::unique_ptr<Active> active) {
  const RequestId id = active->id;
  Active& begun = *active_.emplace(id, std::move(active)).first->second;
  const absl::Status added = run_.Add(std::move(begun.request), begun.sampling, id).status();
  if (!added.ok()) End(id, FinishReason::kInterrupted, added);
}

bool Serving::OnToken(const ClusterRun::Token& token) {
  Active& active = *active_.at(token.request);
  ServedToken served{.token = token.token,
                     .known = token.known,
                     .text = {},
                     .logits_hash = token.logits_hash,
                     .score = token.score,
                     .at = ServingClock::now()};
  if (!token.hash_state.empty()) active.end.hash_state = token.hash_state;
  FinishReason reason = token.reason;
  if (!token.known) {
    if (!std::exchange(active.has_tokens, true)) active.end.first_token = served.at;
    active.end.last_token = served.at;
    if (active.text && reason != FinishReason::kEndToken) served.text = active.text->Push(token.token);
    if (active.text && active.text->stopped() && reason == FinishReason::kNone) reason = FinishReason::kStopped;
  }
  active.sink->OnToken(served);
  if (reason != FinishReason::kNone) End(token.request, reason, absl::OkStatus());
  return reason == FinishReason::kNone;
}

void Serving::End(RequestId request, FinishReason reason, absl::Status status) {
  const auto found = active_.find(request);
  const std::unique_ptr<Active> active = std::move(found->second);
  active_.erase(found);
  {
    absl::MutexLock lock(&mutex_);
    queue_.End(request);
    if (queue_.drained()) stop_ = true;
  }
  active->end.reason = reason;
  active->end.status = std::move(status);
  if (active->text) active->end.text = active->text->Finish();
  active->sink->OnEnd(active->end);
}

void Serving::GiveUp(const absl::Status& why) {
  for (const auto& [id, active] : active_) run_.Stop(id);
  EndAll(why);
}

void Serving::EndAll(const absl::Status& status) {
  for (std::unique_ptr<Active>& active : beginning_) active_.emplace(active->id, std::move(active));
  beginning_.clear();
  while (!active_.empty()) End(active_.begin()->first, FinishReason::kInterrupted, status);
}

}  // namespace lime
