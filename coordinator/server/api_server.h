// The server of `lime serve`: listens at once, says that the model loads, then answers.
//
//   Listen ─► loading ─ Open ─► ready ─ BeginDrain ─► draining ─ Stop
//
// Threads: that of the HTTP server handles requests; see AnswerService and Serving for the others.
// The public functions: one owner.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/http/http_server.h"
#include "coordinator/server/answer_service.h"
#include "coordinator/server/gate.h"
#include "coordinator/server/server_observer.h"

namespace lime {

class ApiServer final : private HttpHandler {
 public:
  struct Options {
    HttpServer::Options http;
    AllowedPlaces::Options places;
    std::vector<std::string> keys;  // none: everybody may call
    absl::Duration keep_alive = absl::Seconds(10);
    std::function<uint64_t()> random;  // 64 random bits.  Thread: any
    bool log_json = false, log_bodies = false;
    std::function<void(std::string_view line)> log;
    ServerObserver* observer = nullptr;  // null: nobody counts
    ServerViews* views = nullptr;        // null: /metrics and /lime/... are unknown paths
  };
  // Errors: see HttpServer::Create.  REQUIRES: what `options` points to outlives this object
  static absl::StatusOr<std::unique_ptr<ApiServer>> Listen(const Options& options);
  ~ApiServer() override;

  const std::string& host() const { return http_->host(); }
  int port() const { return http_->port(); }
  int64_t connections() const { return http_ == nullptr ? 0 : http_->connections(); }
  ServerObserver& observer() { return observer_; }

  // The share of the weights that is loaded.  Thread: any
  void SetProgress(double share) { progress_ = share; }
  double progress() const { return progress_; }
  // Requests are answered from now on.  REQUIRES: `service` goes after Stop, and before this object,
  // which its answers use
  void Open(AnswerService& service);
  // New requests are refused from now on.
  void BeginDrain();
  // Ends streams of the cluster's state, and waits for the last answers; see HttpServer::Stop.
  void Stop(absl::Time deadline);

  // From now on.
  void SetKeys(std::vector<std::string> keys);
  absl::Status ReloadTls() { return http_->ReloadTls(); }

 private:
  enum class State {
    kLoading,   // no model yet
    kReady,     // requests are answered
    kDraining,  // those that run are the last ones
  };
  class ViewSource;

  explicit ApiServer(const Options& options);
  std::optional<HttpResponse> OnHead(const HttpRequest& request) override;
  void OnRequest(HttpRequest request, std::shared_ptr<HttpAnswer> answer) override;
  HttpResponse OnRefusal(const HttpRefusal& refusal, const HttpRequest* request) override;

  std::optional<ApiError> Admit(const HttpRequest& request, Call& call);
  std::optional<ApiError> CheckState(const Call& call) const;
  void CountRejection(const ApiError& error);
  HttpResponse Refuse(const Call& call, const ApiError& error);
  void Answer(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  HttpResponse Health() const;
  void StreamEvents(Exchange& exchange);

  const Options options_;
  ServerObserver unseen_;
  ServerObserver& observer_;
  RequestLog log_;
  const ExchangeReports reports_;
  absl::Mutex gate_mutex_;
  Gate gate_ ABSL_GUARDED_BY(gate_mutex_);
  std::atomic<State> state_ = State::kLoading;
  std::atomic<double> progress_ = 0;
  std::atomic<AnswerService*> service_ = nullptr;
  std::atomic<bool> ending_ = false;  // streams of the cluster's state end
  absl::Mutex streams_mutex_;
  std::vector<std::weak_ptr<HttpAnswer>> streams_ ABSL_GUARDED_BY(streams_mutex_);
  std::unique_ptr<HttpServer> http_;  // destroyed first
};

}  // namespace lime
