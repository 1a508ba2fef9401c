// A cluster of simulated devices and the coordinator's own logic, OrderWriter, Replanner and
// Recovery, in one thread: a seed decides the model, the plans, the requests, all durations and the
// faults.
//
// Checked in every run: every token is right; a page has one holder; no device uses more memory
// than its plan allows, idle slots included; every request ends at the right token; nothing waits
// for an event that cannot come.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/logic/order_writer.h"
#include "coordinator/logic/recovery.h"
#include "tests/sim/sim_plans.h"
#include "tests/sim/sim_request.h"
#include "tests/sim/sim_stage.h"
#include "tests/sim/sim_watcher.h"
#include "tests/sim/sim_world.h"

namespace lime {

struct SimOptions {
  uint64_t seed = 1;
  PlantedBug bug = PlantedBug::kNone;
  bool faults = true;
  bool traces = false;
  bool shares_kv = false;  // requests begin like earlier ones, and share KV
  bool hybrid = false;     // layers of the model have linear attention, and keep a state
  bool experts = false;    // layers of the model have experts, which plans load on demand; not with hybrid
  bool sparse = false;     // the model has ReLU, and MLPs of plans are sparse; not with the others
};
// The run of this seed in lime_sim: every other one shares KV, every fifth one has a hybrid model,
// every seventh of the others one with experts, and every third of those left one with ReLU.
inline SimOptions SimRun(uint64_t seed) {
  const bool hybrid = seed % 5 == 0, experts = !hybrid && seed % 7 == 0;
  return {.seed = seed, .shares_kv = seed % 2 == 0, .hybrid = hybrid, .experts = experts, .sparse = !hybrid && !experts && seed % 3 == 0};
}

struct SimResult {
  std::string violation;  // empty: none
  std::string transcript;
  SimFaultCounts faults{};
  int64_t tokens = 0, steps = 0, recoveries = 0, plan_changes = 0, taken_over = 0, not_taken_over = 0;
  int64_t kept = 0;                   // slots that kept KV
  int64_t continued = 0, copied = 0;  // requests that began with it; or with a copy
  int64_t kept_by_all = 0;            // requests that continued with KV after a failure
  int64_t rolled_back = 0;            // guesses that sequences computed and went back from
  int64_t outlived = 0;               // times that it gave up and later requests came
  bool gave_up = false;               // a device that every plan needs was lost, or failed repeatedly
  bool planted = false;               // the planted bug has happened
  SimReadAhead ahead;
  SimPlaces places;
  SimNeurons neurons;
  int64_t hosted_units = 0;  // that devices have computed for others
  double ms = 0;             // simulated
};

SimResult RunSim(const SimOptions& options);

}  // namespace lime
