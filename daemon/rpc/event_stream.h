// Streams of events from a device to its callers.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "proto/grpc_status.h"

namespace lime {

// A gRPC stream on which the device sends events in order, then its final status. `Reactor` is a
// class of gRPC's callback API.
//
// Threads: any. Lives until gRPC has finished with it and nobody else holds it.
template <typename Reactor, typename Event>
class EventStream : public Reactor {
 protected:
  // Takes ownership of a stream that was just created.
  template <typename Stream>
  static std::shared_ptr<Stream> Own(Stream* made) {
    std::shared_ptr<Stream> stream(made);
    made->self_ = stream;
    return stream;
  }

  void Queue(Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queue_.push_back(std::move(event));
    Write();
  }
  // Drops the events whose write has not begun.
  void DropQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { queue_.resize(writing_ ? 1 : 0); }
  // Ends the stream after all queued events. The first status counts; later calls change nothing.
  void EndWith(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!ending_) end_ = status;
    ending_ = true;
    Write();
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) queue_.clear();
    Write();
  }
  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  void OnDone() override { const std::shared_ptr<EventStream> self = std::move(self_); }

  mutable absl::Mutex mutex_;
  std::deque<Event> queue_ ABSL_GUARDED_BY(mutex_);  // the front event is being written
  // No more events may be queued.
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  // Finish was called, so the call's context may be destroyed.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // The caller has gone before the stream ended.
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);

 private:
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      return this->StartWrite(&queue_.front());
    }
    if (!ending_) return;
    finished_ = true;
    this->Finish(ToGrpc(end_));
  }

  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<EventStream> self_;  // until OnDone
};

// Ends a unary call with `what` as its reply, or with the error.
template <typename What>
grpc::ServerUnaryReactor* Answer(grpc::ServerUnaryReactor* reactor, const absl::StatusOr<What>& what, auto* message) {
  if (what.ok()) ToProto(*what, *message);
  reactor->Finish(ToGrpc(what.status()));
  return reactor;
}

}  // namespace lime
