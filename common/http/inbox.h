// Calls of other threads for the loop of the server.
//
// Thread: any for Post, PostWake and Close; that of the loop for Take.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "common/http/answer.h"
#include "common/http/connection.h"
#include "planner/base/status.h"

namespace lime {

// A request that its owner answers.
struct HttpExchange {
  explicit HttpExchange(uint64_t of) : session(of) {}

  const uint64_t session;
  std::atomic<bool> woken = false;  // a wake is in the inbox
  // Thread of the loop:
  std::optional<HttpEnd> end;
  std::function<void(HttpEnd)> ended;
  std::function<void()> on_wake;  // empty after the end
  bool has_early_wake = false;    // one came before on_wake
};

class HttpInbox {
 public:
  // `connection` is null if the exchange has ended.
  using Act = absl::AnyInvocable<void(HttpExchange& exchange, HttpConnection* connection, absl::Time now)>;
  struct Call {
    std::shared_ptr<HttpExchange> exchange;
    Act act;  // none: a wake
  };

  HttpInbox() = default;
  ~HttpInbox();
  HttpInbox(const HttpInbox&) = delete;
  HttpInbox& operator=(const HttpInbox&) = delete;
  // Makes the event below.
  absl::Status Open();

  // Returns false after Close, without a call.
  bool Post(std::shared_ptr<HttpExchange> exchange, Act act);
  // One wake is in the inbox at most, for each exchange.
  void PostWake(const std::shared_ptr<HttpExchange>& exchange);

  // Moves the calls into `calls`, in their order. The two vectors change places, so that their
  // memory stays.  REQUIRES: `calls` is empty
  void Take(std::vector<Call>& calls);
  // An eventfd, readable exactly while calls wait. Owned by this object.
  int event() const { return event_; }
  // Takes the last calls. Later ones are refused.  REQUIRES: `calls` is empty
  void Close(std::vector<Call>& calls);

 private:
  bool Add(Call call);

  int event_ = -1;
  absl::Mutex mutex_;  // also of what event_ counts
  std::vector<Call> calls_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// The answer to `exchange` by way of `inbox`.
std::shared_ptr<HttpAnswer> MakePostedAnswer(std::shared_ptr<HttpInbox> inbox, std::shared_ptr<HttpExchange> exchange);

}  // namespace lime
