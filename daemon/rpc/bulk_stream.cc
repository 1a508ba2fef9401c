#include "daemon/rpc/bulk_stream.h"

#include <utility>

#include "absl/time/clock.h"
#include "proto/grpc_status.h"

namespace lime {

std::shared_ptr<BulkStream> BulkStream::Begin(grpc::CallbackServerContext& context) {
  const std::shared_ptr<BulkStream> stream(new BulkStream(context));
  stream->self_ = stream;
  return stream;
}

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
  ToProto(event, queue_.emplace_back());
  Write();
}

void BulkStream::Write() {
  if (writing_ || finished_) return;
  if (!queue_.empty()) {
    writing_ = true;
    return StartWrite(&queue_.front());
  }
  if (!ending_) return;
  finished_ = true;
  Finish(ToGrpc(end_));
}

void BulkStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  queue_.pop_front();
  if (!ok) queue_.clear();
  Write();
}

void BulkStream::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  end_ = status;
  ending_ = true;
  Write();
}

void BulkStream::OnCancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
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

void BulkStream::OnDone() {
  const std::shared_ptr<BulkStream> self = std::move(self_);
}

}  // namespace lime
