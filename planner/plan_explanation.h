// Why a plan is as it is, in words with numbers: what each device is good for, what more memory would change, and what is missing where
// nothing fits. Everything is found by short searches that begin at the plan; pure and, for a seed, deterministic.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan/instance.h"
#include "planner/plan/stage_plan.h"
#include "planner/plan_search.h"
#include "planner/strategies.h"

namespace lime {

struct ExplainOptions {
  Strategy strategy = Strategy::kLime;
  SearchOptions search;        // of the plan: granularity, seed, clock, bound on the first token; its limits are not used
  double total_ms = 2000;      // for all searches of an explanation together
  double tokens_per_step = 1;  // sentences speak of ms per token
  int64_t context = 0;         // tokens whose KV the instance counts; 0: not said
};

struct DeviceExplanation {
  bool used = false;
  std::string why;
  // ms per step of the best plan found without the device where it is used, and with the best layer on it where it is not; absent: none
  // fits.
  std::optional<double> otherwise_ms;
  // ms per step that the plan gains where the device has one GiB more.
  std::optional<double> one_more_gib_ms;
  // ms per step where this device alone has everything in memory; absent: it does not fit.
  std::optional<double> alone_ms;
};

// By device.  REQUIRES: instance.Validate().ok(), plan.Validate(instance).ok(), ms_per_step its time
std::vector<DeviceExplanation> ExplainDevices(const Instance& instance, const StagePlan& plan, double ms_per_step,
                                              const ExplainOptions& options);

// Why no plan fits: the device that is short of memory, what is missing, and what would make it fit, which a search has confirmed.
// REQUIRES: instance.Validate().ok(), and the strategy finds no plan
std::string ExplainInfeasible(const Instance& instance, const std::string& reason, const ExplainOptions& options);

}  // namespace lime
