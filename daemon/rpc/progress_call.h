// A call that tells how something long goes on: the newest progress takes the place of one that was not sent yet.
//
// Threads: any. Whoever works may outlast the call.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "daemon/rpc/event_stream.h"

namespace lime {

template <typename Event>
class ProgressCall final : public EventStream<grpc::ServerWriteReactor<Event>, Event> {
 public:
  static std::shared_ptr<ProgressCall> Begin() { return ProgressCall::Own(new ProgressCall); }

  void Say(const Event& event) {
    absl::MutexLock lock(&this->mutex_);
    if (this->ending_) return;
    this->DropQueued();
    this->Queue(event);
  }

  // Once. `last` is sent where all is well, in place of progress that was not sent yet.
  void End(const absl::Status& status, std::optional<Event> last = std::nullopt) {
    absl::MutexLock lock(&this->mutex_);
    this->DropQueued();
    if (status.ok() && last) this->Queue(*std::move(last));
    this->EndWith(status);
  }

  // `cancel` is called once when the other end has gone without hearing the end, or now where it has.
  void OnGone(std::function<void()> cancel) {
    absl::MutexLock lock(&this->mutex_);
    if (this->cancelled_) return cancel();
    cancel_ = std::move(cancel);
  }

 private:
  ProgressCall() = default;

  void OnCancel() override {
    absl::MutexLock lock(&this->mutex_);
    this->cancelled_ = true;
    if (cancel_) cancel_();
  }

  std::function<void()> cancel_ ABSL_GUARDED_BY(this->mutex_);
};

}  // namespace lime
