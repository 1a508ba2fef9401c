#include "coordinator/server/answer_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/api/answers/server_answers.h"
#include "coordinator/generation/text_answers.h"
#include "coordinator/server/replies.h"
#include "coordinator/server/request_log.h"
#include "coordinator/serving/cluster_run.h"

namespace lime {
namespace {

absl::CivilSecond LocalTime() {
  return absl::ToCivilSecond(absl::Now(), absl::LocalTimeZone());
}

int64_t PositionsOf(const std::vector<ServingRequest>& requests) {
  int64_t positions = 0;
  for (const ServingRequest& request : requests) positions += std::ssize(request.prompt) + request.max_new_tokens;
  return positions;
}

}  // namespace

AnswerService::AnswerService(const Options& options)
    : options_(options),
      context_(new AnswerContext{.model = options_.model,
                                 .serving = options_.serving,
                                 .plan = options_.plan,
                                 .observer = options_.observer,
                                 .random = options_.random,
                                 .keep_alive = options_.keep_alive,
                                 .max_wait = options_.max_wait,
                                 .on_failure = options_.on_failure}),
      parse_options_(options_.model.parse_options()),
      listed_(options_.model.listed()) {}

void AnswerService::Take(std::shared_ptr<Exchange> exchange) {
  const auto bytes = static_cast<int64_t>(exchange->body().size());
  const bool has_room = waiting_ < most_requests() && (waiting_bytes_ == 0 || waiting_bytes_ + bytes <= kMaxWaitingBytes);
  if (!has_room) {
    options_.observer.OnRejected(Rejection::kQueueFull);
    return exchange->Fail(QueueFull(waiting_, PredictedWaitSeconds()));
  }
  ++waiting_;
  waiting_bytes_ += bytes;
  tokenizing_.Post([this, exchange = std::move(exchange), bytes] {
    if (!exchange->is_gone()) Answer(*exchange);
    --waiting_;
    waiting_bytes_ -= bytes;
  });
}

std::optional<ApiResult<std::string>> AnswerService::Listed(const Route& route) const {
  switch (route.endpoint) {
    case Endpoint::kModels:
      return ModelsAnswer(options_.model);
    case Endpoint::kModel:
      return ModelAnswer(options_.model, route.model);
    case Endpoint::kOllamaTags:
      return OllamaTagsJson(listed_);
    case Endpoint::kOllamaPs:
      return OllamaPsJson(listed_);
    default:
      return std::nullopt;
  }
}

// ---- The thread that tokenizes

void AnswerService::Answer(Exchange& exchange) {
  const ApiResult<ApiRequest> request = ParseRequest(exchange.call().route->endpoint, exchange.body(), parse_options_);
  if (!request.ok()) return exchange.Fail(request.error());
  if (!request->skipped_tools.empty()) exchange.Note(SkippedToolsNote(request->skipped_tools));
  AnswerText(exchange, *request);
}

void AnswerService::AnswerText(Exchange& exchange, const ApiRequest& request) {
  const auto reply = [&exchange](ApiResult<std::string> body) {
    if (!body.ok()) return exchange.Fail(body.error());
    exchange.Send(JsonReply(*std::move(body)));
  };
  const Endpoint endpoint = exchange.call().route->endpoint;
  switch (endpoint) {
    case Endpoint::kTokenize:
      return reply(TokenizeAnswer(options_.model, request, LocalTime()));
    case Endpoint::kDetokenize:
      return reply(DetokenizeAnswer(options_.model, request));
    case Endpoint::kApplyTemplate:
      return reply(ApplyTemplateAnswer(options_.model, request, LocalTime()));
    case Endpoint::kOllamaShow:
      return reply(OllamaShowJson(*FindModel(request.model)));
    default:
      if (!request.only_loads) return Generate(exchange, request);
      return reply(OllamaLoadedJson(endpoint, {.id = exchange.call().id,
                                               .created = absl::ToUnixSeconds(absl::Now()),
                                               .model = FindModel(request.model)->id,
                                               .fingerprint = {},
                                               .first_offsets = {}}));
  }
}

// ParseRequest has refused all other names. An empty one is the model's own.
const ListedModel* AnswerService::FindModel(const std::string& name) const {
  const auto found = std::ranges::find(listed_, name, &ListedModel::id);
  return found != listed_.end() ? &*found : &listed_.front();
}

void AnswerService::Generate(Exchange& exchange, const ApiRequest& request) {
  const Endpoint endpoint = exchange.call().route->endpoint;
  ApiResult<Generation> generation = PrepareGeneration(options_.model, endpoint, request, {.now = LocalTime(), .random = options_.random});
  if (!generation.ok()) {
    if (generation.error().code == "context_length_exceeded") options_.observer.OnRejected(Rejection::kTooLong);
    return exchange.Fail(generation.error());
  }
  std::vector<ServingRequest>& requests = (*generation).requests;
  if (const int64_t positions = PositionsOf(requests), most = most_requests() * options_.model.context(); positions > most)
    return exchange.Fail(
        InvalidValue((*generation).prompts == 1 ? "n" : PromptField(endpoint),
                     absl::StrCat("its ", requests.size(), " answers may have ", positions, " positions, but only ", most,
                                  " may run and wait; send fewer prompts in one request, or ask for fewer answers or tokens")));
  if ((*generation).calls.unmasked)
    exchange.Note("calls are not held to their schemas, since these are too long together; send fewer tools");
  for (ServingRequest& each : requests) each.cache_group = exchange.call().cache_group;
  const auto answer = std::make_shared<LiveAnswer>(context_, exchange.shared_from_this(), request, *std::move(generation));
  if (const absl::Status started = answer->Start(); !started.ok()) exchange.Fail(Refusal(started, answer->generation(), endpoint));
}

ApiError AnswerService::Refusal(const absl::Status& status, const Generation& generation, Endpoint endpoint) const {
  if (absl::IsInvalidArgument(status))
    return InvalidValue(IsWrongFormat(status) ? generation.format_param : PromptField(endpoint), std::string(status.message()));
  if (absl::IsUnavailable(status) && context_->draining) {
    options_.observer.OnRejected(Rejection::kDraining);
    return Draining();
  }
  if (LacksFormatMemory(status)) return NoSchemaMemory(std::string(status.message()), PredictedWaitSeconds());
  if (absl::IsResourceExhausted(status)) {
    if (!Fits(generation)) return InvalidValue(PromptField(endpoint), std::string(status.message()));
    options_.observer.OnRejected(Rejection::kQueueFull);
    return QueueFull(options_.serving.load().waiting, PredictedWaitSeconds());
  }
  ApiError error = ErrorOf(status, *context_);
  if (error.status == 500 && options_.on_failure) options_.on_failure(status);
  return error;
}

// Whether the plan has room for each of the requests alone.
bool AnswerService::Fits(const Generation& generation) const {
  return std::ranges::all_of(generation.requests, [this](const ServingRequest& request) {
    return OrderWriter::Check({.prompt = request.prompt, .max_new_tokens = request.max_new_tokens, .end_tokens = {}},
                              ClusterRun::LogitsFor(request.sampling), options_.serving.limits())
        .ok();
  });
}

int64_t AnswerService::most_requests() const {
  return options_.queue + options_.plan.get()->plan.sequences;
}

// Until a place is free: the mean of the tokens that are due, at the predicted speed, divided among
// the slots. Behind a long list, several requests have to end before.
double AnswerService::PredictedWaitSeconds() const {
  const Serving::Load load = options_.serving.load();
  const std::shared_ptr<const ServedPlan> plan = options_.plan.get();
  const double tokens = static_cast<double>(context_->due_tokens) / static_cast<double>(std::max<int64_t>(1, load.waiting + load.running));
  const auto ends = static_cast<double>(std::max<int64_t>(1, load.waiting + load.running + 1 - most_requests()));
  return ends * tokens * plan->MsPerToken(load.running) / 1000 / std::max(1, plan->plan.sequences);
}

}  // namespace lime
