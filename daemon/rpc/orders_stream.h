// The coordinator's stream to this device: orders in, news out, and both sides heard of at least every so often.
//
// Threads: any.  gRPC owns the stream from Begin to its end; others hold it weakly.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "daemon/rpc/device_server.h"
#include "daemon/rpc/event_stream.h"
#include "lime/v1/control.grpc.pb.h"

namespace lime {

class OrdersStream final : public EventStream<grpc::ServerBidiReactor<v1::OrderRequest, v1::OrderEvent>, v1::OrderEvent>,
                           public std::enable_shared_from_this<OrdersStream> {
 public:
  using Options = OrdersOptions;
  // The reactor of a call that has just come in.
  static std::shared_ptr<OrdersStream> Begin(PlanKeeper& keeper, grpc::CallbackServerContext& context, const Options& options);

  void Tick(absl::Time now);

 private:
  OrdersStream(PlanKeeper& keeper, grpc::CallbackServerContext& context, const Options& options)
      : keeper_(keeper), context_(context), options_(options), heard_(absl::Now()), said_(heard_) {}

  void OnReadDone(bool ok) override;
  void OnDone() override;

  absl::Status OnMessage(const FromCoordinator& what);
  absl::Status OnOpen(int64_t epoch);
  void Say(const FromDevice& what);
  void End(const absl::Status& status);

  PlanKeeper& keeper_;
  grpc::CallbackServerContext& context_;
  const Options options_;
  v1::OrderRequest reading_;               // of the one read at a time
  std::shared_ptr<StageSession> session_;  // likewise: set by the first message

  absl::Time heard_ ABSL_GUARDED_BY(mutex_), said_ ABSL_GUARDED_BY(mutex_);
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lime
