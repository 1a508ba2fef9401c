// A coordinator's request to install a plan on a device. Pure data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/kv_takeover_plan.h"
#include "planner/plan/model/weights_digest.h"
#include "planner/plan/plan.h"

namespace lime {

// A program that installs plans, and its user.
struct Coordinator {
  std::string user, host;
  uint64_t id = 0;  // unique; 0: unknown

  friend bool operator==(const Coordinator&, const Coordinator&) = default;
};

struct InstallCall {
  Plan plan;
  int32_t device = 0;                   // index in the plan
  std::vector<std::string> addresses;   // of the plan's devices; empty for a device without work
  std::string weights;                  // folder on the device; empty: its own
  uint64_t model = 0;                   // ModelDigest that identifies pushed weights; 0: unknown
  int64_t trace_spans = 0;              // capacity for recorded spans; 0: no tracing
  bool trace_when_asked = false;        // records spans for kTraceAskedMs after a TraceCall, and only then
  std::optional<KvTakeoverPlan> kv;     // KV of the plan before; nullopt: all sequences begin anew
  std::optional<WeightsDigest> digest;  // required digest of the weights; nullopt: any
  Coordinator coordinator;              // the caller
};

}  // namespace lime
