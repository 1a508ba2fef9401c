// What `lime plan` answers: the plan, what each device does of it, and why.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan_explanation.h"

namespace lime::cli {

// One device's share of a decode step.
struct DeviceUse {
  std::vector<int> stages;     // of the plan
  double resident_blocks = 0;  // attention and MLP halves and the head; a part of one counts by its bytes
  double streamed_blocks = 0;
  Bytes resident_bytes = 0;
  Bytes streamed_bytes = 0;  // read from its disk
  double compute_ms = 0;
  double load_ms = 0;                  // its disk reads
  double communication_ms = 0;         // what it sends, to the moment it has arrived; what it asks, to the answer
  std::optional<double> uncovered_ms;  // it waits for weights, in the simulated schedule; absent where the plan is too large to simulate
};

struct PlanReport {
  std::string strategy;
  std::string model_argument;  // for `lime run --model`; empty: its weights are not here
  Plan plan;
  std::vector<DeviceUse> uses;                  // by device
  std::vector<DeviceExplanation> explanations;  // by device
  double max_ttft_ms = 0;                       // the bound asked for; 0: none
  std::vector<std::string> notes;

  double TokensPerStep() const { return plan.sequences; }
};

// Simulates the plan for what cannot be added up.
absl::StatusOr<std::vector<DeviceUse>> UsesOf(const Plan& plan);

// The blocks of a stage as people call them: "0-11", "12m-31a" (m: from the MLP half of layer 12, a: to the attention half of 31),
// "60-79+head", "head 0-42751".
std::string StageText(const Plan& plan, int stage);

// How often the device that appears most often appears.
int NumRounds(const Plan& plan);

// What the device would be asked to run the model alone, or empty where it does not hold everything: the fastest that does.
int FastestAlone(const PlanReport& report);  // -1: none

nlohmann::ordered_json ToJson(const PlanReport& report);

// ---- As a person reads it

// Prediction and its bound, a table of devices, a memory bar for each, why each is used or left out, what was assumed. ASCII, lines of
// about `columns`.
std::string PlanText(const PlanReport& report, int columns);

// One letter for each kind of memory, in proportion to the budget: "RAAKKWWWWWWWWWSS....".  REQUIRES: width >= 1
std::string MemoryBar(const PlanMemory& memory, Bytes budget, int width);

}  // namespace lime::cli
