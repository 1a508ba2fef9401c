// One push as its worker sees it: messages in, one after another, and events out. gRPC's threads only hand over.
//
// Threads: Read, Say and End by the worker; Tick and Cancel by any; the rest is gRPC's, which owns the stream until it has ended.
#pragma once

#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "daemon/rpc/event_stream.h"
#include "lime/v1/bulk.grpc.pb.h"
#include "proto/bulk_convert.h"

namespace lime {

class BulkStream final : public EventStream<grpc::ServerBidiReactor<v1::PushRequest, v1::PushEvent>, v1::PushEvent> {
 public:
  static std::shared_ptr<BulkStream> Begin(grpc::CallbackServerContext& context) { return Own(new BulkStream(context)); }

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

  enum class Reading : uint8_t {
    kNo,    // the worker wants nothing
    kWait,  // gRPC has been asked
    kHere,  // a message
    kOver,  // there will be none
  };

  grpc::CallbackServerContext& context_;
  v1::PushRequest request_;  // of the one read at a time
  Reading reading_ ABSL_GUARDED_BY(mutex_) = Reading::kNo;
  absl::Time waits_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // the worker, for the other end
};

}  // namespace lime
