// A call that tells how something long goes on: the newest progress takes the place of one that was not sent yet.
//
// Threads: any. Lives until the call has ended and nobody holds it: whoever works may outlast the call.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "proto/grpc_status.h"

namespace lime {

template <typename Event>
class ProgressCall final : public grpc::ServerWriteReactor<Event> {
 public:
  static std::shared_ptr<ProgressCall> Begin() {
    const std::shared_ptr<ProgressCall> call(new ProgressCall);
    call->self_ = call;
    return call;
  }

  void Say(const Event& event) {
    absl::MutexLock lock(&mutex_);
    if (finished_ || ended_) return;
    next_ = event;
    Write();
  }

  // Once. `last` is sent where all is well, in place of progress that was not sent yet.
  void End(const absl::Status& status, std::optional<Event> last = std::nullopt) {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    end_ = status;
    next_ = status.ok() ? std::move(last) : std::nullopt;
    Write();
  }

  // `cancel` is called once when the other end has gone without hearing the end, or now where it has.
  void OnGone(std::function<void()> cancel) {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return cancel();
    cancel_ = std::move(cancel);
  }

 private:
  ProgressCall() = default;

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (next_) {
      writing_ = true;
      message_ = *std::exchange(next_, std::nullopt);
      return this->StartWrite(&message_);
    }
    if (!ended_) return;
    finished_ = true;
    this->Finish(ToGrpc(end_));
  }

  void OnWriteDone(bool) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    Write();
  }

  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (cancel_) cancel_();
  }

  void OnDone() override { const std::shared_ptr<ProgressCall> self = std::move(self_); }

  std::shared_ptr<ProgressCall> self_;  // until OnDone
  Event message_;                       // being written
  absl::Mutex mutex_;
  std::optional<Event> next_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> cancel_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;     // End was called
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // Finish was called
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lime
