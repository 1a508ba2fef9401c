// The installation of a plan on a device, as a coordinator asks for it. Pure data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/kv_take.h"
#include "planner/plan/plan.h"
#include "planner/plan/weights_digest.h"

namespace lime {

// A program that installs plans, and for whom.
struct Coordinator {
  std::string user, host;
  uint64_t id = 0;  // no two have the same; 0: not said

  friend bool operator==(const Coordinator&, const Coordinator&) = default;
};

struct InstallCall {
  Plan plan;
  int32_t device = 0;                   // of the plan
  std::vector<std::string> addresses;   // of its devices; empty where one does nothing
  std::string weights;                  // folder on the device; empty: its own
  uint64_t model = 0;                   // ModelDigest, by which it finds its own; 0: not said
  int64_t trace_spans = 0;              // room for what it records; 0: nothing
  std::optional<KvTake> kv;             // of the plan before; nothing: every sequence begins anew
  std::optional<WeightsDigest> digest;  // that the weights must have; nothing: not said
  Coordinator coordinator;              // who asks
};

}  // namespace lime
