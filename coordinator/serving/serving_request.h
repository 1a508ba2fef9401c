// What is asked of a Serving, and what is heard of it.
//
// Free of any protocol's spelling: a command's prompts, and a server's calls of whatever API, become this.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/order_message.h"
#include "common/row_score.h"
#include "coordinator/logic/order_writer.h"

namespace lime {

struct ServingRequest {
  std::vector<int32_t> prompt;            // at least one id
  int64_t max_new_tokens = 0;             // at least 1; 0 where the prompt is scored
  std::vector<int32_t> end_tokens;        // it ends behind one of these; empty: it goes on behind the model's
  std::vector<std::string> stop_strings;  // it ends before one of these. Only where there is a tokenizer
  // How its tokens are chosen, and what is told of their logits. `sampling.choice` is what makes its random numbers its own; without it
  // they are those of its id. Penalties, biases and log-probabilities of more tokens are further fields of that type.
  RequestSampling sampling;
};

using ServingClock = std::chrono::steady_clock;

struct ServedToken {
  int32_t token = 0;
  bool known = false;                    // an id of the prompt of a request that is scored
  std::string_view text;                 // that has become certain with it, often its own. For the call
  uint64_t logits_hash = 0;              // of all logits of its request so far, where its sampling asks for it
  const cpu::RowScore* score = nullptr;  // likewise. For the call
  ServingClock::time_point at;           // when it was heard of
};

struct RequestEnd {
  FinishReason reason = FinishReason::kNone;  // kInterrupted where `status` says why
  // OK where it came to its end. Cancelled: by Cancel, or at the end of a Drain. DeadlineExceeded: it waited for too long. Unavailable: it
  // waited when a Drain began. Else a failure that was not survived.
  absl::Status status;
  std::string_view text;  // that was held back. For the call
  // When it came, got its slot, had its first and its last token; what did not happen is the clock's epoch.
  ServingClock::time_point submitted, started, first_token, last_token;
};

// Who hears of one request.
//
// Thread: all calls come on the Serving's one, one at a time. A call holds up every other request until it returns, so it never waits: who
// has to wait for a socket or a screen copies what it is told, which max_new_tokens bounds, and goes on elsewhere. It may Submit and
// Cancel.
class RequestSink {
 public:
  virtual ~RequestSink() = default;

  // So much of its prompt is computed. After a device was lost that begins again, with the tokens so far.
  virtual void OnPrompt(double /*share*/) {}
  virtual void OnToken(const ServedToken& token) = 0;
  // The last call, once for every request that was taken.
  virtual void OnEnd(const RequestEnd& end) = 0;
};

struct Submission {
  ServingRequest request;
  std::shared_ptr<RequestSink> sink;
};

}  // namespace lime
