// What a device says to who calls it.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "proto/grpc_status.h"

namespace lime {

// On a stream of gRPC's: events, one after another, and then how it has ended. `Reactor`: of gRPC's callback API.
//
// Threads: any. Lives until gRPC is done with it and nobody holds it.
template <typename Reactor, typename Event>
class EventStream : public Reactor {
 protected:
  // Of a stream that has just been made.
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
  // Events that are not on their way yet are not said.
  void DropQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { queue_.resize(writing_ ? 1 : 0); }
  // What was said before goes out first. The first end counts.
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
  std::deque<Event> queue_ ABSL_GUARDED_BY(mutex_);  // the front one is being written
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;      // and nothing new is said
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;    // Finish was called: the call's context may go
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;   // the other end has gone without an end
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

// Ends a call with what it asks for, or with why it gets nothing.
template <typename What>
grpc::ServerUnaryReactor* Answer(grpc::ServerUnaryReactor* reactor, const absl::StatusOr<What>& what, auto* message) {
  if (what.ok()) ToProto(*what, *message);
  reactor->Finish(ToGrpc(what.status()));
  return reactor;
}

}  // namespace lime
