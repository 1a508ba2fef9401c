// Eq. 1 and 2: the time of a uniform plan in closed form, used to explain and to prune, and the
// division of offloaded slots by it. Decisions use the exact evaluation (evaluator.h).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/instance/instance.h"

namespace lime {

// Time to compute and to load one layer on a device: both halves, with disk_lat_ms once per block.
struct LayerTimes {
  double comp_ms = 0;
  double load_ms = 0;
};

// One entry per device.  REQUIRES: instance.Validate().ok(). An error if the blocks are not equal
// whole layers, or if there is a head.
absl::StatusOr<std::vector<LayerTimes>> UniformLayerTimes(const Instance& instance);

// A uniform plan: S rounds over the devices in `order`. In each round device i computes r[i]
// resident and k[i] streamed layers.
struct UniformPlan {             // each device once
  std::vector<int32_t> order;    // devices, each once
  double segments = 1;           // S
  std::vector<double> resident;  // r, by device
  std::vector<double> streamed;  // k, by device
};

struct ClosedForm {
  double total_ms = 0;                  // S max(C, R)
  double segment_critical_path_ms = 0;  // C = sum_i (r_i + k_i) c_i + |order| hop
  double segment_load_cycle_ms = 0;     // R = max_i k_i (l_i + c_i): a slot is in use while its block computes
  double uncovered_ms = 0;              // S max(0, R - C)
};

// Eq. 1 with hop_ms = tx + lat. The hop from the last device to the first counts.  REQUIRES:
// plan.order within `layers`
ClosedForm EvaluateClosedForm(const std::vector<LayerTimes>& layers, double hop_ms, const UniformPlan& plan);

// Divides `need` offloaded slots among the devices, at most kmax[i] on device i.
struct OffloadSlotProblem {
  std::vector<double> load_ms;  // l_i
  std::vector<double> comp_ms;  // c_i
  std::vector<int64_t> kmax;
  int64_t need = 0;
  double c_ms = 0;  // C
};

struct OffloadSlotShares {
  bool feasible = false;  // sum kmax >= need
  // The minimum of max_i max(0, k_i l_i - (C - k_i c_i)). Disks load in parallel.
  double uncovered_ms = 0;
  std::vector<int64_t> k;  // one solution
};

// Exact.  REQUIRES: lists of equal length, all values finite and not negative.
OffloadSlotShares ShareOffloadSlots(const OffloadSlotProblem& problem);

}  // namespace lime
