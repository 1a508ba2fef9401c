// Connects a device's part of a plan to the other devices. daemon/rpc/rpc_transport.h does it over
// gRPC. A plan for one device needs none.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/activation.h"
#include "common/kv_takeover_plan.h"
#include "daemon/kv/kv_handover.h"
#include "daemon/logic/trace_ring.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// Carries activations from this device to one other device, in order.
//
// Threads: any. Send returns at once: messages that cannot be sent yet wait.
class Link {
 public:
  virtual ~Link() = default;

  virtual void Send(ActivationMessage activation) = 0;

  struct Counts {
    int64_t messages = 0;
    Bytes bytes = 0;  // headers and payloads, without probes
  };
  virtual Counts sent() const = 0;

  struct Rate {
    double bytes_per_second = 0;  // with the headers of TCP, IP and Ethernet
    double age_ms = 0;            // since the measurement
  };
  virtual std::optional<Rate> rate() const = 0;
  // Measures the link if that is due. Called every LinkEstimator::kAskAgainUs.
  virtual void Tick() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  struct LinkOptions {
    std::string peer, address;
    int64_t epoch = 0;
    int32_t from = 0;                               // this device, in the plan
    int32_t to = 0;                                 // the other device
    std::function<void(const absl::Status&)> lost;  // called once, on any thread
    // Gets a span for each message; null: no trace; outlives the link.
    TraceRing* trace = nullptr;
  };
  // Begins to connect. After the link is destroyed nothing is called any more.
  virtual std::unique_ptr<Link> OpenLink(LinkOptions options) = 0;

  // Reads KV that a plan has left on another device. Errors: Unavailable if that device is lost or
  // silent; kCancelled soon after `cancelled` is set; the device's refusal; DataLoss if pages come
  // damaged or some are missing; the error of `sink`.  Thread: the one that loads
  virtual absl::Status ReadKv(const KvHolder& holder, const KvReadCall& call, const std::atomic<bool>& cancelled,
                              const KvTakeover::PageSink& sink) = 0;
  // Everything is read.  Thread: the one that loads
  virtual void EndKvReads() = 0;
};

}  // namespace lime
