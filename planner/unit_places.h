// Chooses for how many experts of every layer the devices have memory, if experts are on demand.
//
// More places make more hits, until other parts have to stream or the places no longer fit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/problem/plan_problem.h"

namespace lime {

struct UnitPlacesSearch {
  // A plan with PlanRequest::unit_places; ResourceExhausted if none fits.
  std::function<absl::StatusOr<Plan>(int64_t places)> plan;
  // The newest plan is the best one until now.
  std::function<void()> best = [] {};
  std::function<bool()> ends = [] { return false; };
  int most_plans = 6;
};

// Whether experts on demand may make a plan faster: the model has experts, and `whole`, with nothing
// on demand, streams parts of them.
bool MayGainFromDemand(const ModelSpec& spec, const Plan& whole);

// The plan with the least TimeMs. Begins with the experts of one row; without room for these, with two
// places, through which the experts of a row pass one after the other. Continues with as many as the
// newest best plan has room for, and then halves the intervals to the next numbers that were worse or
// did not fit: time falls with more places, and then rises. Deterministic if `plan` and `ends` are.
// Errors: that of `plan` with the fewest places; of other numbers only those that are not
// ResourceExhausted.
absl::StatusOr<Plan> ChooseUnitPlaces(const ModelSpec& spec, const UnitPlacesSearch& search);

// How much memory each device of a plan may have for experts of all layers.
struct DividedSearch {
  std::vector<Bytes> idle_bytes;  // by device: of its budget, what it cannot use if it has no stage
  Bytes message_bytes = 0;        // of each device, beyond those of a plan with layers on devices
  double of_memory = 1;           // the share of the rest that experts may have
  std::vector<double> hits;       // PlanRequest::unit_hits
};
// Shares of the experts for the devices of a plan with experts on demand, which has them on the
// devices of their layers: with the memory that this plan leaves them, and balanced by the rates of
// the disks. ResourceExhausted if the devices have no memory for that.
absl::StatusOr<std::vector<UnitShare>> SharesLike(const ModelSpec& spec, const Plan& plan, const DividedSearch& search);

// Milliseconds per step: the prediction, and at least the reads of every disk. The prediction counts
// streamed parts and parts on demand as if each had the disk to itself.
double TimeMs(const Plan& plan);

// What a plan, or one device of it, keeps of its experts on demand.
struct UnitUse {
  int64_t units = 0;     // of one layer; 0: none are on demand
  int64_t places = 0;    // of one layer, in memory
  double hit_share = 0;  // expected, of the chosen units of a decode step
  double bytes = 0;      // expected to be read in a decode step
  double read_ms = 0;    // the time of these reads, if nothing else uses the disk

  // "experts: 48 of 128 kept, 76 % expected in memory, 0.9 GiB read a token"; empty without units.
  // `measured`: the share that was in memory; then "…, 76 % expected in memory, 78 % measured, …".
  std::string Text(double tokens_per_step, std::optional<double> measured = std::nullopt) const;
};
UnitUse UnitUseOf(const Plan& plan);
UnitUse UnitUseOf(const Plan& plan, int32_t device);

}  // namespace lime
