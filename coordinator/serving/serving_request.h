// A request to Serving, and what its sink receives.
//
// Independent of any protocol: a command's prompts and calls of a server's API become such
// requests.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/order_message.h"
#include "common/sampling/row_score.h"
#include "coordinator/logic/order_writer.h"

namespace lime {

struct ServingRequest {
  std::vector<int32_t> prompt;            // at least one id
  int64_t max_new_tokens = 0;             // at least 1; 0 if the prompt is scored
  std::vector<int32_t> end_tokens;        // it ends after one of these, if any
  std::vector<std::string> stop_strings;  // it ends before one; needs a tokenizer
  // How tokens are chosen, and what is reported of their logits. `sampling.choice` selects the
  // request's random numbers; without it the id of the request does. `sampling.format` needs the
  // vocabulary of Serving::Options.
  RequestSampling sampling;
  // Whether KV of earlier requests may be used, and KV of this one by later requests. It changes no
  // bit of the answer. See Serving::Options::prompt_cache.
  bool cache_prompt = false;
  int64_t cache_group = 0;  // KV is shared only within a group: one for each API key
};

using ServingClock = std::chrono::steady_clock;

struct ServedToken {
  int32_t token = 0;
  bool known = false;        // an id of the prompt of a scored request
  std::string_view text;     // text that is now certain; valid during the call
  uint64_t logits_hash = 0;  // of all its logits so far, if asked for
  // Of an id of a scored prompt, or of a generated token with `sampling.logprobs`, also of one that
  // ends the answer. Valid during the call.
  const cpu::RowScore* score = nullptr;
  ServingClock::time_point at;  // when it arrived here
};

struct RequestEnd {
  FinishReason reason = FinishReason::kNone;  // kInterrupted: `status` says why
  // OK: it came to its end. Cancelled: by Cancel, or at the end of a Drain. DeadlineExceeded: it
  // waited too long. Unavailable: it was waiting when a Drain began. Other errors: a failure that
  // was not survived.
  absl::Status status;
  std::string_view text;  // text that was held back; valid during the call
  // Of a scored prompt with hash_logits: LogitsHash::State behind it, with which another request
  // continues. Empty: it did not end, or an older release computes its head.
  std::string hash_state;
  int64_t cached_tokens = 0;  // first ids of the prompt whose KV was there when it started
  // When it was submitted, got its slot, and had its first and last token. The clock's epoch: it
  // did not happen.
  ServingClock::time_point submitted, started, first_token, last_token;
};

// Receives what happens to one request.
//
// Thread: all calls come on the thread of Serving, one at a time. A call delays every other request
// until it returns, so it must not block. A sink that has to wait for a socket or a screen copies
// its arguments and continues on another thread; max_new_tokens bounds the copies. It may Submit
// and Cancel.
class RequestSink {
 public:
  virtual ~RequestSink() = default;

  // The computed share of its prompt. After a device is lost, this starts again, with the tokens so
  // far.
  virtual void OnPrompt(double /*share*/) {}
  virtual void OnToken(const ServedToken& token) = 0;
  // The last call, exactly once for every request that was accepted.
  virtual void OnEnd(const RequestEnd& end) = 0;
};

struct Submission {
  ServingRequest request;
  std::shared_ptr<RequestSink> sink;
};

}  // namespace lime
