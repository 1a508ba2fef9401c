// The coordinator's end of one device's stream of orders (daemon/rpc/orders_stream.h).
//
// Threads: any. News is told on gRPC's threads, in order, one at a time; FailedNews is the last, whatever the reason.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lime/v1/control.grpc.pb.h"
#include "proto/convert.h"

namespace lime {

class OrdersCall final : public grpc::ClientBidiReactor<v1::OrderRequest, v1::OrderEvent> {
 public:
  struct Options {
    std::string device;  // its name
    int64_t epoch = 0;
    absl::Duration beat = absl::Milliseconds(500);  // something is said at least so often
    absl::Duration silence = absl::Seconds(2);      // a device that says nothing for so long is lost
    std::function<void(const FromDevice&)> news;
  };
  // REQUIRES: `stub` outlives this.
  OrdersCall(v1::Control::Stub& stub, Options options);
  // Ends the stream; the device unloads the plan. Nothing is told any more once this returns. Not on the thread that news is told on.
  ~OrdersCall() override;

  void Send(const v1::OrderRequest& request);
  // All orders are given: the device may take the end of the stream for the end of the run. Nothing is told any more.
  void End();
  // Whether the device has taken it before `until`.
  bool AwaitEnd(absl::Time until);
  void Tick(absl::Time now);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(FromDevice what);

  const Options options_;
  grpc::ClientContext context_;
  v1::OrderEvent reading_;
  bool failed_told_ = false;  // news is told one at a time

  absl::Mutex mutex_;
  absl::Time heard_ ABSL_GUARDED_BY(mutex_), said_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::OrderRequest> queue_ ABSL_GUARDED_BY(mutex_);  // the front one is being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // nothing may be started any more
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;  // was given up for saying nothing
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;  // nothing is sent any more
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;   // and the device is told so
};

}  // namespace lime
