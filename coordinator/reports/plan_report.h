// The answer of `lime plan`: the plan, the work of each device, and the reasons.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan/sparse_parts.h"
#include "planner/plan_explanation.h"
#include "planner/unit_places.h"

namespace lime::cli {

// One device's share of a decode step.
struct DeviceUse {
  std::vector<int> stages;     // of the plan
  double resident_blocks = 0;  // layer halves and head; a part of a block counts by its bytes
  double streamed_blocks = 0;
  Bytes resident_bytes = 0;
  Bytes streamed_bytes = 0;  // read from its disk
  UnitUse units;             // experts on demand
  NeuronUse neurons;         // of sparse MLPs
  double compute_ms = 0;
  double load_ms = 0;           // its disk reads, with those expected on demand
  double communication_ms = 0;  // its messages until they arrive, its queries until answered
  // Waits for weights in the simulated schedule; nullopt if the plan is too large to simulate.
  std::optional<double> uncovered_ms;
};

struct PlanReport {
  std::string strategy;
  std::string model_argument;  // for `lime run --model`; empty: the weights are not here
  Plan plan;
  std::vector<DeviceUse> uses;                  // by device
  std::vector<DeviceExplanation> explanations;  // by device
  double max_ttft_ms = 0;                       // the requested bound; 0: none
  std::string sparsity_why;                     // why MLPs are sparse or not; empty if nothing was compared
  std::vector<std::string> notes;

  double TokensPerStep() const { return plan.sequences; }
};

// Simulates the plan for values that cannot be added up.
absl::StatusOr<std::vector<DeviceUse>> UsesOf(const Plan& plan);

// The blocks of a stage in short form: "0-11", "12m-31a" (m: from the MLP half of layer 12, a: to
// the attention half of layer 31), "60-79+head", "head 0-42751".
std::string StageText(const Plan& plan, int stage);

// Why --read-ahead has no effect on a plan: no layer has places for some of its experts. Empty if some
// has, or if `ahead_places` (the flag) is 0.
std::string NoReadAheadText(const Plan& plan, int32_t ahead_places);

// The number of stages of the device that has the most.
int NumRounds(const Plan& plan);

// The fastest device that holds the whole model.
int FastestAlone(const PlanReport& report);  // -1: none

nlohmann::ordered_json ToJson(const PlanReport& report);

// ---- As text

// The prediction and its bound, a table of devices, a memory bar for each, why each is used or left
// out, and assumptions. ASCII, lines of about `columns`.
std::string PlanText(const PlanReport& report, int columns);

// One letter per kind of memory, in proportion to the budget: "RAAKKWWWWWWWWWSS....".
// REQUIRES: width >= 1
std::string MemoryBar(const PlanMemory& memory, Bytes budget, int width);

}  // namespace lime::cli
