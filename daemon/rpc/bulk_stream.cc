#include "daemon/rpc/bulk_stream.h"

#include <utility>

#include "absl/time/clock.h"

namespace lime {

std::optional<v1::PushRequest> BulkStream::Read() {
  absl::MutexLock lock(&mutex_);
  if (cancelled_) return std::nullopt;
  reading_ = Reading::kWait;
  waits_since_ = absl::Now();
  StartRead(&request_);
  mutex_.Await(absl::Condition(
      +[](BulkStream* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) { return self->reading_ != Reading::kWait; }, this));
  waits_since_ = absl::InfiniteFuture();
  if (reading_ == Reading::kOver) return std::nullopt;
  reading_ = Reading::kNo;
  return std::move(request_);
}

void BulkStream::OnReadDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  reading_ = ok ? Reading::kHere : Reading::kOver;
}

// An end that takes no events is not listened to either.
void BulkStream::Say(const PushEvent& event) {
  absl::MutexLock lock(&mutex_);
  waits_since_ = absl::Now();
  mutex_.Await(absl::Condition(
      +[](BulkStream* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) { return self->cancelled_ || self->queue_.size() < kMaxQueued; },
      this));
  waits_since_ = absl::InfiniteFuture();
  v1::PushEvent message;
  ToProto(event, message);
  Queue(std::move(message));
}

void BulkStream::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  EndWith(status);
}

bool BulkStream::cancelled() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

void BulkStream::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (!finished_) context_.TryCancel();
}

void BulkStream::Tick(absl::Time now, absl::Duration silence) {
  {
    absl::MutexLock lock(&mutex_);
    if (now - waits_since_ < silence) return;
  }
  Cancel();
}

}  // namespace lime
