#include "coordinator/server/api_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/exposition/exposition.h"
#include "coordinator/api/answers/server_answers.h"
#include "coordinator/page/page_files.h"
#include "coordinator/server/replies.h"

namespace lime {
namespace {

constexpr std::string_view kEventStream = "text/event-stream";

bool NeedsModel(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kHealth:
    case Endpoint::kMetrics:
    case Endpoint::kCluster:
    case Endpoint::kClusterEvents:
    case Endpoint::kOllamaVersion:
    case Endpoint::kPageFile:
      return false;
    default:
      return true;
  }
}

}  // namespace

// A stream of the cluster's state, until the server ends it.
class ApiServer::ViewSource final : public BodySource {
 public:
  ViewSource(std::unique_ptr<BodySource> source, const std::atomic<bool>& ending) : source_(std::move(source)), ending_(ending) {}
  bool Pull(std::string& out) override { return ending_ || source_->Pull(out); }
  void OnSilence(std::string& out) override { source_->OnSilence(out); }

 private:
  const std::unique_ptr<BodySource> source_;
  const std::atomic<bool>& ending_;
};

absl::StatusOr<std::unique_ptr<ApiServer>> ApiServer::Listen(const Options& options) {
  std::unique_ptr<ApiServer> server(new ApiServer(options));
  LIME_ASSIGN_OR_RETURN(server->http_, HttpServer::Create(options.http, *server));
  return server;
}

ApiServer::ApiServer(const Options& options)
    : options_(options),
      observer_(options_.observer != nullptr ? *options_.observer : unseen_),
      log_(options_.log_json, options_.log),
      reports_{.log = log_, .observer = observer_, .logs_bodies = options_.log_bodies},
      gate_(options_.places, options_.keys, [](std::string_view path) { return FindPageFile(path) != nullptr; }) {}

ApiServer::~ApiServer() {
  Stop(absl::InfinitePast());
}

void ApiServer::Open(AnswerService& service) {
  service_ = &service;
  state_ = State::kReady;
}

void ApiServer::BeginDrain() {
  state_ = State::kDraining;
  if (AnswerService* const service = service_) service->Drain();
}

void ApiServer::Stop(absl::Time deadline) {
  if (http_ == nullptr) return;
  ending_ = true;
  {
    const absl::MutexLock lock(&streams_mutex_);
    for (const std::weak_ptr<HttpAnswer>& stream : streams_) {
      if (const auto answer = stream.lock()) answer->Wake();
    }
  }
  http_->Stop(deadline);
}

void ApiServer::SetKeys(std::vector<std::string> keys) {
  const absl::MutexLock lock(&gate_mutex_);
  gate_.SetKeys(std::move(keys));
}

// ---- Requests

std::optional<ApiError> ApiServer::Admit(const HttpRequest& request, Call& call) {
  call.at = ServingClock::now();
  {
    const absl::MutexLock lock(&gate_mutex_);
    if (auto refused = gate_.Admit(request, NewRequestId(options_.random), call)) return refused;
  }
  return CheckState(call);
}

std::optional<ApiError> ApiServer::CheckState(const Call& call) const {
  if (call.route->is_preflight) return std::nullopt;
  const Endpoint endpoint = call.route->endpoint;
  const bool is_view = endpoint == Endpoint::kMetrics || endpoint == Endpoint::kCluster || endpoint == Endpoint::kClusterEvents;
  if (is_view && options_.views == nullptr) return UnknownUrl(call.method, call.route->path);
  if (!NeedsModel(endpoint)) return std::nullopt;
  const State state = state_;
  if (state == State::kLoading) return Loading();
  if (state == State::kDraining && call.method == "POST") return Draining();
  return std::nullopt;
}

void ApiServer::CountRejection(const ApiError& error) {
  if (error.code == "invalid_api_key") observer_.OnRejected(Rejection::kAuth);
  if (error.code == "draining") observer_.OnRejected(Rejection::kDraining);
}

// For requests that become no Exchange.
HttpResponse ApiServer::Refuse(const Call& call, const ApiError& error) {
  HttpResponse reply = ErrorReply(call.is_ollama, error);
  reply.headers.insert(reply.headers.end(), call.headers.begin(), call.headers.end());
  ReportExchange(reports_, call, {.status = error.status, .code = error.code});
  return reply;
}

std::optional<HttpResponse> ApiServer::OnHead(const HttpRequest& request) {
  Call call;
  const std::optional<ApiError> refused = Admit(request, call);
  if (!refused) return std::nullopt;
  CountRejection(*refused);
  return Refuse(call, *refused);
}

void ApiServer::OnRequest(HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
  Call call;
  const std::optional<ApiError> refused = Admit(request, call);
  const std::shared_ptr<Exchange> exchange = Exchange::Begin(std::move(call), std::move(request.body), std::move(answer), reports_);
  if (!refused) return Answer(request, exchange);
  CountRejection(*refused);
  exchange->Fail(*refused);
}

HttpResponse ApiServer::OnRefusal(const HttpRefusal& refusal, const HttpRequest* request) {
  Call call;
  if (request != nullptr) {
    (void)Admit(*request, call);
  } else {
    call.id = NewRequestId(options_.random);
    call.method = "other";
    call.headers = {{"x-request-id", call.id}};
    call.at = ServingClock::now();
  }
  return Refuse(call, ErrorOf(refusal, options_.http.limits.request.body_bytes));
}

void ApiServer::Answer(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  const Route& route = *exchange->call().route;
  if (route.is_preflight) return exchange->Send(OptionsReply(route.allow));
  switch (route.endpoint) {
    case Endpoint::kHealth:
      return exchange->Send(Health());
    case Endpoint::kPageFile:
      return exchange->Send(PageReply(*FindPageFile(route.path), request));
    case Endpoint::kMetrics: {
      HttpResponse reply = HeadReply(kExpositionType, false);
      reply.body = options_.views->Metrics();
      return exchange->Send(std::move(reply));
    }
    case Endpoint::kCluster:
      return exchange->Send(JsonReply(options_.views->ClusterJson()));
    case Endpoint::kClusterEvents:
      return StreamEvents(*exchange);
    case Endpoint::kOllamaVersion:
      return exchange->Send(JsonReply(OllamaVersionJson()));
    default:
      break;
  }
  AnswerService& service = *service_.load();
  auto listed = service.Listed(route);
  if (!listed) return service.Take(exchange);
  if (!listed->ok()) return exchange->Fail(listed->error());
  exchange->Send(JsonReply(**std::move(listed)));
}

HttpResponse ApiServer::Health() const {
  switch (state_.load()) {
    case State::kLoading:
      return JsonReply(HealthJson("loading", progress_.load()), 503);
    case State::kReady:
      return JsonReply(HealthJson("ok", std::nullopt));
    case State::kDraining:
      return JsonReply(HealthJson("draining", std::nullopt), 503);
  }
  return JsonReply(HealthJson("ok", std::nullopt));
}

void ApiServer::StreamEvents(Exchange& exchange) {
  auto source = std::make_unique<ViewSource>(options_.views->ClusterEvents(exchange.shared_answer()), ending_);
  {
    const absl::MutexLock lock(&streams_mutex_);
    std::erase_if(streams_, [](const std::weak_ptr<HttpAnswer>& stream) { return stream.expired(); });
    streams_.push_back(exchange.shared_answer());
  }
  exchange.Stream(HeadReply(kEventStream, true), options_.keep_alive, std::move(source));
}

}  // namespace lime
