// Explains a plan in sentences with numbers: the use of each device, the effect of more memory, and
// what is missing if nothing fits. It uses short searches that start from the plan. Pure, and
// deterministic for a seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan/instance/instance.h"
#include "planner/plan/instance/stage_plan.h"
#include "planner/search/plan_search.h"
#include "planner/strategies.h"

namespace lime {

struct ExplainOptions {
  Strategy strategy = Strategy::kLime;
  // Granularity, seed, clock and first-token bound of the search for the plan. Limits are ignored.
  SearchOptions search;
  double total_ms = 2000;      // for all searches of one explanation
  double tokens_per_step = 1;  // sentences use ms per token
  int64_t context = 0;         // tokens with KV in the instance; 0: unknown
  bool on_demand = false;      // some parts load on demand, so "everything fits" is never true
};

struct DeviceExplanation {
  bool used = false;
  std::string why;
  // ms per step of the best plan without this device; if the device is unused, of the best plan
  // with a layer on it. Absent: no such plan fits.
  std::optional<double> otherwise_ms;
  // ms per step saved if the device had one GiB more.
  std::optional<double> one_more_gib_ms;
  // ms per step if this device alone had everything in memory. Absent: it does not fit, or parts load
  // on demand.
  std::optional<double> alone_ms;
};

// One entry per device.  REQUIRES: instance.Validate().ok(), plan.Validate(instance).ok(),
// `ms_per_step` is the plan's time
std::vector<DeviceExplanation> ExplainDevices(const Instance& instance, const StagePlan& plan, double ms_per_step,
                                              const ExplainOptions& options);

// Says why no plan fits: the device that lacks memory, how much, and a change that makes a plan
// fit, confirmed by a search. REQUIRES: instance.Validate().ok(), and the strategy finds no plan
std::string ExplainInfeasible(const Instance& instance, const std::string& reason, const ExplainOptions& options);

}  // namespace lime
