// The coordinator's end of the order stream to one device (daemon/rpc/orders_stream.h).
//
// Threads: any. News comes on gRPC's threads, in order, one at a time. FailedNews is the last, for
// any reason.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lime/v1/control.grpc.pb.h"
#include "proto/convert/convert.h"

namespace lime {

class OrdersCall final : public grpc::ClientBidiReactor<v1::OrderRequest, v1::OrderEvent> {
 public:
  struct Options {
    std::string device;  // its name
    OpenOrders open;
    absl::Duration beat = absl::Milliseconds(500);  // maximum time between messages to the device
    // A silent device counts as lost after this time.
    absl::Duration silence = absl::Seconds(2);
    std::function<void(const FromDevice&)> news;
  };
  // REQUIRES: `stub` outlives this object.
  OrdersCall(v1::Control::Stub& stub, Options options);
  // Ends the stream, and the device unloads the plan. No news comes after this returns. Must not
  // run on the thread of the news.
  ~OrdersCall() override;

  void Send(const v1::OrderRequest& request);
  // All orders are sent: the device may take the end of the stream as the end of the run. No news
  // comes after this.
  void End();
  // Waits for the end of the stream. False if it has not ended at `until`.
  bool AwaitEnd(absl::Time until);
  void Tick(absl::Time now);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Post(FromDevice what);

  const Options options_;
  grpc::ClientContext context_;
  v1::OrderEvent reading_;
  bool failure_delivered_ = false;  // news comes one at a time

  absl::Mutex mutex_;
  absl::Time heard_ ABSL_GUARDED_BY(mutex_), said_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::OrderRequest> queue_ ABSL_GUARDED_BY(mutex_);  // the front one is being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // no read or write may start
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;  // cancelled because the device was silent
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more is sent
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;   // the end was sent too
};

}  // namespace lime
