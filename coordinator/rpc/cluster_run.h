// Runs requests over an installed plan: what devices report goes to the OrderWriter, what that writes goes to the devices.
//
// Threads: one owner, that waits in Run; news comes on gRPC's threads and waits for it in a queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "coordinator/logic/order_writer.h"
#include "coordinator/rpc/cluster_client.h"

namespace lime {

class ClusterRun {
 public:
  // REQUIRES: a plan is installed; `client` outlives this.
  ClusterRun(ClusterClient& client, const OrderWriter::Options& orders);

  absl::StatusOr<RequestId> Add(Request request, const RequestSampling& sampling);

  struct Token {
    RequestId request = 0;
    int32_t token = 0;
    uint64_t logits_hash = 0;  // of all logits of its request so far, where its sampling asks for it
    FinishReason reason = FinishReason::kNone;
  };
  // Until all requests have ended or `cancel` is set. `on_token` is called for every token, and answers whether its request may go on.
  // What a device reports as its failure, or a device that is lost, is the error; the plan is not to be used any more after it.
  absl::Status Run(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel);

  int64_t steps() const { return steps_; }  // ended
  bool finished(RequestId request) const { return writer_.finished(request); }

 private:
  using News = std::pair<int32_t, FromDevice>;  // by device of the plan

  struct Inbox {
    absl::Mutex mutex;
    std::deque<News> news ABSL_GUARDED_BY(mutex);
  };
  std::deque<News> AwaitNews();
  absl::Status OnNews(const News& news, const std::function<bool(const Token&)>& on_token);
  absl::Status OnSampled(const SampledNews& news, const std::function<bool(const Token&)>& on_token);
  void SendOrders();

  ClusterClient& client_;
  const int32_t head_;  // the device with the last stage: it samples, and with it a step ends
  OrderWriter writer_;
  std::vector<RequestSampling> sampling_;  // by request
  bool open_ = false;
  int64_t steps_ = 0;

  const std::shared_ptr<Inbox> inbox_;  // the client's too: news may come after this is gone
};

}  // namespace lime
