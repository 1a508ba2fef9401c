// The way of activations from this device to one other: a connection and a stream of their own, messages in order, payloads not copied.
//
// On the wire a message is the header of common/activation.h, then the payload as it lies in memory. The receiver answers when those
// have arrived that follow one another, or are large, which tells how fast the link is (daemon/logic/link_estimator.h). Messages that may
// wait are sent where nothing else is: the next once those before it were answered, or what is not would take the link a millisecond at
// most, so that another message waits for no more. Probes, where nothing at all waits, take what LinkEstimator says. Nothing else waits for
// an answer.
//
// Threads: any. Send returns at once; a message that the connection does not take yet waits in a bounded queue.
// A link that cannot be opened within its patience, breaks once it is open, or whose queue overflows is lost, and says so once. It is not
// mended: nobody knows whether the last messages came through, so the plan is installed anew.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/activation.h"
#include "daemon/logic/trace_ring.h"
#include "daemon/stage/transport.h"
#include "planner/base/bytes.h"
#include "proto/channel.h"

namespace lime {

class ActivationLink final : public Link {
 public:
  struct Options {
    std::string peer;     // its name
    std::string address;  // host:port
    ClusterKeys keys;
    int64_t epoch = 0;
    int32_t from = 0;  // this device, in the plan
    int32_t to = 0;    // the other
    absl::Duration patience = absl::Seconds(2);
    size_t queued_messages = 1024;                  // at most
    Bytes queued_bytes = kMaxQueuedBytes;           // likewise
    std::function<void(const absl::Status&)> lost;  // called once, on any thread
    bool probes = true;                             // where the link is idle, to know how fast it is
    TraceRing* trace = nullptr;                     // a span for every message, where that is asked for; outlives the link
  };
  // Begins to connect.
  explicit ActivationLink(Options options);
  // Nothing is called any more once this returns. Never on a thread that `lost` was called on.
  ~ActivationLink() override;

  void Send(ActivationMessage activation) override;
  Counts sent() const override;
  std::optional<Rate> rate() const override;
  // Sends probes where they are due: LinkEstimator::kAskAgainUs.
  void Tick() override;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lime
