// How a device's part of a plan reaches the other devices: daemon/rpc/rpc_transport.h over gRPC. A plan for one device needs none.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/activation.h"
#include "common/kv_take.h"
#include "daemon/engine/kv_left.h"
#include "daemon/logic/trace_ring.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// The way of activations from this device to one other, in order.
//
// Threads: any. Send returns at once: what the way does not take yet waits.
class Link {
 public:
  virtual ~Link() = default;

  virtual void Send(ActivationMessage activation) = 0;

  struct Counts {
    int64_t messages = 0;
    Bytes bytes = 0;  // headers and payloads; of probes none
  };
  virtual Counts sent() const = 0;

  struct Rate {
    double bytes_per_second = 0;  // with the headers of TCP, IP and Ethernet
    double age_ms = 0;            // since it was measured
  };
  virtual std::optional<Rate> rate() const = 0;
  // Measures the link where that is due: LinkEstimator::kAskAgainUs.
  virtual void Tick() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  struct LinkOptions {
    std::string peer, address;
    int64_t epoch = 0;
    int32_t from = 0;                               // this device, in the plan
    int32_t to = 0;                                 // the other
    std::function<void(const absl::Status&)> lost;  // called once, on any thread
    TraceRing* trace = nullptr;                     // a span for every message, where that is asked for; outlives the link
  };
  // Begins to connect. Once the link is gone nothing is called any more.
  virtual std::unique_ptr<Link> OpenLink(LinkOptions options) = 0;

  // Reads KV that a plan has left on another device. Unavailable where that is lost or silent; kCancelled soon after `cancelled` is set;
  // what the device refuses; DataLoss where pages come damaged, or not all of them do; the error of `take`.  Thread: who loads
  virtual absl::Status ReadKv(const KvHolder& holder, const KvReadCall& call, const std::atomic<bool>& cancelled,
                              const KvTakeover::Take& take) = 0;
  // All is read.  Thread: who loads
  virtual void EndKvReads() = 0;
};

}  // namespace lime
