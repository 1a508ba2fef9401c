// Divides the units of every part on demand over devices (PlanPart::host), so that all disks read
// at once.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/problem/plan_problem.h"

namespace lime {

// The parts that a part on demand becomes on a stage of `owner`: first the owner's units, then
// those of the other devices in order, without devices that have none. Times and expected values
// are those of `whole`. REQUIRES: `shares` have as many units as `whole`, and some for the owner;
// places are from 1 to units
std::vector<PlanPart> DividedParts(const BlockSpec& block, std::span<const UnitShare> shares, int32_t owner, const PlanPart& whole);

// Puts DividedParts in the place of every part on demand. `parts_of`(part, owner) returns them. The
// memory of the devices is left as it is.
template <typename PartsOf>
void ReplaceUnits(const PartsOf& parts_of, Plan& plan) {
  std::vector<PlanPart> parts;
  for (Stage& stage : plan.stages) {
    const auto lo = static_cast<int32_t>(parts.size());
    for (int p = stage.lo; p < stage.hi; ++p) {
      if (!plan.parts[p].on_demand()) {
        parts.push_back(std::move(plan.parts[p]));
        continue;
      }
      for (PlanPart& part : parts_of(p, stage.device)) parts.push_back(std::move(part));
    }
    stage.lo = lo, stage.hi = static_cast<int32_t>(parts.size());
  }
  plan.parts = std::move(parts);
}

// One device, as BalancedShares sees it.
struct UnitHolder {
  double mb_per_ms = 0;   // of its disk; 0: it gets no units
  Bytes place_bytes = 0;  // memory for places of all layers
};

// Shares with which all disks are expected to read for the same time: units by the rate of the
// disk, and fewer for a device with memory for few of them. `layers`: with parts on demand.
// `unit_bytes`: of the largest unit. `hits`: PlanRequest::unit_hits. Every device with a disk has a
// place for at least as many units as one row chooses, or for all of its units. ResourceExhausted
// if one has no memory for that, or if there are fewer units than such devices.
absl::StatusOr<std::vector<UnitShare>> BalancedShares(std::span<const UnitHolder> devices, const ExpertsConfig& experts, int64_t layers,
                                                      Bytes unit_bytes, std::span<const double> hits);

// The time of one device in a layer, if `misses` of its units are read: `fixed_ms` and the larger
// one of the computation and the reads with what is computed behind them.
struct UnitTime {
  double fixed_ms = 0;    // messages: the question, and the result of the last unit
  double compute_ms = 0;  // of all its chosen units, with the messages of their other results
  double late_ms = 0;     // of units that were read
  double unit_ms = 0;     // to read one
  double miss_share = 0;  // the probability that one chosen unit of the layer is one of its misses
  // The probability that one of the other units of the layer is one of its units, and not in memory.
  double absent_share = 0;

  friend auto operator<=>(const UnitTime&, const UnitTime&) = default;
};

// The expected time until all devices are done, if a micro-batch chooses `chosen` units.
//
// Reading: the misses of each device are a binomial number, independent of the others.
double ExpectedLongestMs(std::span<const UnitTime> devices, double chosen);

// Read-ahead: between the reads of one layer and those of the next, every disk reads units that the
// next layer was guessed to choose.
struct UnitsAhead {
  int32_t places = 0;  // PlanRequest::ahead_places
  double rest_ms = 0;  // from the end of one layer's units to the questions about the next one's
};
// The share of the chosen units that the guess names. Measured by others with the router of the next
// layer: 89, 81 and 74 %.
inline constexpr double kGuessedShare = 0.8;
// The expected time as above, in the middle of many equal layers, if all devices read ahead.
// Deterministic: many layers are drawn from a fixed seed; the error is about 1 %.
//
// Reading: right and wrong guesses come in any order. A wrong one costs a read. What a read ahead has
// done when the layer begins counts, if the unit is needed.
double ExpectedLongestMs(std::span<const UnitTime> devices, double chosen, const UnitsAhead& ahead);

}  // namespace lime
