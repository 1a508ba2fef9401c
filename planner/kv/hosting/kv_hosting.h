// Computes the cost of KV in the memory of another device, its host. The host attends to it, or
// sends it back (planner/plan/hosting/kv_on_host.h).
//
// Every layer of the owner asks once per micro-batch: queries go to the host, records come back,
// and the token waits. The data sent does not grow with the context. The positions that the host
// attends to do grow, and the owner saves that work.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/problem/plan_problem.h"

namespace lime {

// Times for one layer and one micro-batch, for one pair of devices.
struct KvAskTimes {
  // Both ways: fp32 queries [rows, heads * head_dim], records [rows, heads * (head_dim + 2)], two
  // latencies.
  double way_ms = 0;
  // Per position of every sequence: time of the host minus time saved by the owner; may be
  // negative.
  double position_ms = 0;
};

struct KvHosting {
  struct Pair {
    KvAskTimes decode, prefill;
    double fetch_mb_per_ms = 0;  // from the host to the owner
  };
  struct Device {
    // The device's memory if the plan uses it. A plan has no such values for a device without a
    // stage.
    Bytes runtime = 0, activations = 0, margin = 0;
  };
  // [owner][host] by the plan's devices. Empty if host and owner are the same, or differ in
  // numerics_id.
  std::vector<std::vector<std::optional<Pair>>> pairs;
  std::vector<Device> devices;
  Bytes asking = 0;     // memory of owner and host each, for queries and records
  Bytes lending = 0;    // additional memory of an owner
  Bytes attending = 0;  // additional memory of a host
  Bytes sending = 0;    // memory of a host for pieces that it sends back
  bool asks = true;     // hosts attend; false: they send all pieces back

  bool Allows(int owner, int host) const { return pairs[static_cast<size_t>(owner)][static_cast<size_t>(host)].has_value(); }
};

// For the micro-batches and prompt chunks of `plan`. Hosts may be asked.  REQUIRES: `plan` was made
// from `devices`, in this order
KvHosting MakeKvHosting(const ModelSpec& spec, std::span<const ClusterDevice> devices, const LinkPoint& default_link, const Plan& plan);

// Where the KV of a device is.
struct KvPlace {
  int64_t layer_pages = 0;  // of each layer in memory; 0: all
  int host = -1;            // the device that stores the other pages; -1: its own disk
  // Number of layers, at their largest, that the memory for fetched pieces holds. 0: none are
  // fetched.
  int64_t back = 0;
};
KvPlace KvPlaceOf(const Plan& plan, int device);

// The plan with the KV of `owner` at `place`, and with the time of asking. Not valid until
// WithResidency divides the memory. REQUIRES: hosting.Allows(owner, host) if there is a host; the
// plan is cut for it (planner/kv/kv_growth.h); back > 0 if !hosting.asks
Plan WithKvAway(const Plan& plan, const KvHosting& hosting, int owner, const KvPlace& place);

}  // namespace lime
