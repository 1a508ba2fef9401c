// One push as its worker sees it: messages in, one after another, and events out. gRPC's threads only hand over.
//
// Threads: Read, Say and End by the worker; Tick and Cancel by any; the rest is gRPC's, which owns the stream until it has ended.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lime/v1/bulk.grpc.pb.h"
#include "proto/bulk_convert.h"

namespace lime {

class BulkStream final : public grpc::ServerBidiReactor<v1::PushRequest, v1::PushEvent>, public std::enable_shared_from_this<BulkStream> {
 public:
  static std::shared_ptr<BulkStream> Begin(grpc::CallbackServerContext& context);

  // Waits for the next message. None: the other end is gone, or was given up.
  std::optional<v1::PushRequest> Read();
  void Say(const PushEvent& event);
  // What was said before goes out first. Once, by the worker, or by who refuses it a worker.
  void End(const absl::Status& status);

  bool cancelled() const;
  void Cancel();
  // Gives up an end that has been waited for longer than `silence`.
  void Tick(absl::Time now, absl::Duration silence);

 private:
  static constexpr size_t kMaxQueued = 64;
  explicit BulkStream(grpc::CallbackServerContext& context) : context_(context) {}
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  enum class Reading : uint8_t {
    kNo,    // the worker wants nothing
    kWait,  // gRPC has been asked
    kHere,  // a message
    kOver,  // there will be none
  };

  grpc::CallbackServerContext& context_;
  std::shared_ptr<BulkStream> self_;  // until OnDone
  v1::PushRequest request_;           // of the one read at a time
  mutable absl::Mutex mutex_;
  Reading reading_ ABSL_GUARDED_BY(mutex_) = Reading::kNo;
  absl::Time waits_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // the worker, for the other end
  std::deque<v1::PushEvent> queue_ ABSL_GUARDED_BY(mutex_);                  // the front one is being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // Finish was called: `context_` may go
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lime
