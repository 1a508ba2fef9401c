// What it costs to have KV of one device in the memory of another one, which attends to it there or sends it back (planner/plan/kv_spill.h,
// planner/plan/kv_fetching.h).
//
// Every layer of the owner asks once for each micro-batch: its queries go to the host, records come back, and the token waits meanwhile.
// What travels does not grow with the context; what the host attends to does, and the owner need not.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "planner/plan/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/plan_problem.h"

namespace lime {

// Of one layer and one micro-batch, asked by one device of one other.
struct KvAskTimes {
  double way_ms = 0;       // there and back: fp32 queries [rows, heads * head_dim], records [rows, heads * (head_dim + 2)], two latencies
  double position_ms = 0;  // for a position of every sequence: what the host takes for it beyond what the owner saves; may be negative
};

struct KvHosting {
  struct Pair {
    KvAskTimes decode, prefill;
    double fetch_mb_per_ms = 0;  // from the host to the owner
  };
  struct Device {
    Bytes runtime = 0, activations = 0, margin = 0;  // where it is in use; a plan says nothing of these where it has no stage
  };
  // [owner][host], by the plan's devices; nothing where one cannot have the other's KV: itself, kernels of another order.
  std::vector<std::vector<std::optional<Pair>>> pairs;
  std::vector<Device> devices;
  Bytes asking = 0;     // memory of each of the two for queries and records
  Bytes lending = 0;    // of an owner beside that
  Bytes attending = 0;  // of a host beside that
  Bytes sending = 0;    // of a host for pieces that go back to an owner
  bool asks = true;     // hosts attend; else all their pieces go back

  bool Allows(int owner, int host) const { return pairs[static_cast<size_t>(owner)][static_cast<size_t>(host)].has_value(); }
};

// For micro-batches and prompt chunks of `plan`. Hosts may be asked.  REQUIRES: `devices` are those that it was made of, in order
KvHosting MakeKvHosting(const ModelSpec& spec, std::span<const ClusterDevice> devices, const LinkPoint& default_link, const Plan& plan);

// Where a device has what of its KV.
struct KvPlace {
  int64_t layer_pages = 0;  // of each layer in memory; 0: all
  int host = -1;            // whose memory has the others; -1: its own disk
  int64_t back = 0;         // layers, as large as they ever are, that the room for pieces from the host has; 0: none come back
};
KvPlace KvPlaceOf(const Plan& plan, int device);

// The plan with the KV of `owner` there, and what asking takes. WithResidency divides memory anew; until then this is no valid plan.
// REQUIRES: hosting.Allows(owner, host) where there is a host; the plan is cut for it (planner/kv_growth.h); back > 0 where !hosting.asks
Plan WithKvAway(const Plan& plan, const KvHosting& hosting, int owner, const KvPlace& place);

}  // namespace lime
