// Answers requests with a model: reads bodies, renders, tokenizes, and submits what generates.
//
//   Take (thread of the server) ─► a queue ─► the thread that tokenizes ─► text: the answer
//                                                                     └──► LiveAnswer ─► Serving
//
// Bounds: as many requests wait for this thread as may wait and run, and kMaxWaitingBytes of bodies.
// The answers of one request have as many positions as that many requests of a whole context, so a
// long list of short prompts is computed bit by bit (ServeQueue::Options::most_together).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/api/requests/parse_request.h"
#include "coordinator/server/exchange.h"
#include "coordinator/server/live_answer.h"
#include "daemon/machine/worker_thread.h"
#include "planner/base/bytes.h"

namespace lime {

class AnswerService {
 public:
  static constexpr Bytes kMaxWaitingBytes = 64 * kMiB;

  struct Options {
    const ServedModel& model;
    Serving& serving;
    const PlanInUse& plan;
    ServerObserver& observer;
    std::function<uint64_t()> random;  // 64 random bits.  Thread: any
    int64_t queue = 64;                // as ServeQueue::Options::most_waiting
    absl::Duration max_wait = absl::Seconds(600);
    absl::Duration keep_alive = absl::Seconds(10);
    std::function<void(const absl::Status&)> on_failure;  // see AnswerContext
  };
  // REQUIRES: all arguments outlive this object, and this object the server that has its answers
  explicit AnswerService(const Options& options);

  // Answers a request with a body.  Thread: the server's
  void Take(std::shared_ptr<Exchange> exchange);
  // Answers that need no body: models, as OpenAI and Ollama list them. Nothing: another endpoint.
  std::optional<ApiResult<std::string>> Listed(const Route& route) const;

  // Errors of requests from now on say so.
  void Drain() { context_->draining = true; }

 private:
  void Answer(Exchange& exchange);
  void AnswerText(Exchange& exchange, const ApiRequest& request);
  void Generate(Exchange& exchange, const ApiRequest& request);
  // The error of requests that Serving has refused.
  ApiError Refusal(const absl::Status& status, const Generation& generation, Endpoint endpoint) const;
  bool Fits(const Generation& generation) const;
  int64_t most_requests() const;
  double PredictedWaitSeconds() const;
  const ListedModel* FindModel(const std::string& name) const;

  const Options options_;
  const std::shared_ptr<AnswerContext> context_;
  const ParseOptions parse_options_;
  const std::vector<ListedModel> listed_;
  std::atomic<int64_t> waiting_ = 0, waiting_bytes_ = 0;
  WorkerThread tokenizing_;  // destroyed first
};

}  // namespace lime
