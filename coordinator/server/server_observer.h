// What the server reports about its requests, and the views of itself that others answer: metrics,
// the cluster, its events.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "common/http/answer.h"
#include "common/http/body_source.h"

namespace lime {

// Why a request was refused that could have been answered at another time or with another key.
enum class Rejection {
  kQueueFull,  // 429
  kTooLong,    // 400 context_length_exceeded
  kAuth,       // 401
  kDraining,   // 503, while the server drains
};

// How one choice of an answer ended.
enum class GenerationFinish {
  kStop,       // an end token or a stop string
  kLength,     // no tokens left
  kToolCalls,  // a call
  kCancelled,  // the client left, or took nothing for too long
  kError,      // any other failure, also a request that waited too long
};

struct SeenChoice {
  GenerationFinish finish = GenerationFinish::kStop;
  int64_t generated_tokens = 0;
  // Nothing: it did not come so far.
  std::optional<absl::Duration> queue;        // until it had a slot
  std::optional<absl::Duration> first_token;  // since the request arrived
  std::optional<absl::Duration> per_token;    // mean of the tokens after the first
};

// An answer that generated, or should have: every accepted request has one.
struct SeenAnswer {
  int64_t prompt_tokens = 0, cached_tokens = 0;
  std::span<const SeenChoice> choices;  // valid during the call
  absl::Duration predicted_per_token;
};

// Any request of HTTP, when its answer has ended.
struct SeenExchange {
  std::string_view route;   // a pattern of RoutePatterns(), or "unknown"
  std::string_view method;  // GET, HEAD, POST, OPTIONS, or "other"
  int status = 0;           // 0: the client left before it was known
  absl::Duration duration;  // since its head was read
};

// Receives what happens.
//
// Thread: the server's, the one that tokenizes, and that of Serving, several at a time. No call may
// block. OnFirstToken and OnToken come on the thread of Serving and must not allocate.
class ServerObserver {
 public:
  virtual ~ServerObserver() = default;

  // It is in the queue now, and ends with OnAnswer.
  virtual void OnAccepted() {}
  virtual void OnRejected(Rejection /*why*/) {}
  // Of one choice.
  virtual void OnFirstToken(absl::Duration /*since_arrival*/) {}
  // Of one choice, a token after its first.
  virtual void OnToken(absl::Duration /*since_last*/) {}
  virtual void OnAnswer(const SeenAnswer& /*answer*/) {}
  virtual void OnExchange(const SeenExchange& /*exchange*/) {}
};

// Answers that others make for the server: GET /metrics, /lime/cluster, /lime/events. The server has
// checked hosts, origins and keys. Requests come also while the model loads, and while the server
// drains.
//
// Thread: the server's. A call delays all connections, so it must not block.
class ServerViews {
 public:
  virtual ~ServerViews() = default;

  virtual std::string Metrics() = 0;      // text/plain; version=0.0.4
  virtual std::string ClusterJson() = 0;  // application/json
  // The body of a text/event-stream. `answer` wakes the source, and is kept no longer than it.
  virtual std::unique_ptr<BodySource> ClusterEvents(std::shared_ptr<HttpAnswer> answer) = 0;
};

}  // namespace lime
