// Computes how a plan changes as its KV grows: the levels of KV pages, and the parts that stream at
// each (docs/internals/algorithms.md, section 5).
//
// Blocks stay on their devices and rings keep their size, so no data moves between devices. Only
// the streamed parts change. The plan is the first level. Each next level has more pages and fewer
// resident parts. On a device with a page limit, more KV goes to its disk
// (planner/plan/kv_spill.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/kv/hosting/kv_hosting.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_residency.h"

namespace lime {

struct KvLevel {
  Residency residency;
  double ms_per_step = 0;  // by the exact evaluation, with the plan's compute times

  friend bool operator==(const KvLevel&, const KvLevel&) = default;
};

struct KvLevels {
  std::vector<KvLevel> levels;  // ascending by pages; the first is the plan's own
  // Why there is no next level; empty if the last has the whole context.
  std::string exhausted;
  std::optional<int> stuck;  // then the device without room, if one device is the cause
};

// Chooses the parts of a device that stream at a level in addition to the plan's own. `room`:
// memory for the device's parts without KV pages. LIME has its own rule; the others are to compare
// with.
using OnlineRule = std::vector<int32_t> (*)(const Plan& plan, int device, Bytes room, int64_t layer_pages);
// Part by part, the fastest by the exact evaluation, over all devices.
inline constexpr OnlineRule kLimeRule = nullptr;
// How a plan continues as its KV grows; nullopt: requests have only the KV that it begins with.
using KvGrowth = std::optional<OnlineRule>;

struct KvLevelOptions {
  OnlineRule rule = kLimeRule;
  int max_levels = 12;  // in addition to the first
  double work = 2e8;    // per level, in units of SearchBudget
  uint64_t seed = 1;
  bool disks = true;                   // whether PlanToSpill may put KV on disks
  const KvHosting* hosting = nullptr;  // how it may put KV on hosts; null: it may not
  // When it returns true, every search ends with its current result: no further level; for
  // PlanToGrow and PlanToSpill the best plan so far, or none. Null: never.
  std::function<bool()> cancelled;

  bool Ends() const { return cancelled && cancelled(); }
};

// If a plan does not keep all KV, the first level has all that it keeps, and no part streams at any
// level. The time of a step is the mean over the pages since the previous level.
//
// Deterministic.  REQUIRES: plan.Validate().ok(); every part is read once in a step
KvLevels MakeKvLevels(const Plan& plan, const KvLevelOptions& options = {});

// The time of the first of these levels, which needs no search.  REQUIRES: all KV is kept
double FirstLevelMs(const Plan& plan);

// The mean over all levels.
double MeanMs(const KvLevels& levels);
// The mean over the levels between `from` and `to` pages of a layer, weighted by their pages.
double MeanMs(const KvLevels& levels, int64_t from, int64_t to);

// Time of the level with all KV, computed without the levels before; infinite if there is none.
double MsAtTheEnd(const Plan& plan, const KvLevelOptions& options);

// The plan after its rings, pages or hosts have changed, with the best streamed parts for its first
// level. ResourceExhausted if it has no room.
absl::StatusOr<Plan> Refit(Plan plan, const KvLevelOptions& options);

}  // namespace lime
