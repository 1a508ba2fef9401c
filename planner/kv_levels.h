// How a plan goes on as its KV grows: levels of KV pages, and what streams at each (algorithms.md, section 5).
//
// The block-to-device map and the rings stay, so nothing travels: only which parts stream changes. A plan made for less KV than its context
// needs has its first level; each further one has more pages and fewer resident parts, and where a device keeps only so many pages, more on
// its disk (planner/plan/kv_spill.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/kv_hosting.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_residency.h"

namespace lime {

struct KvLevel {
  Residency residency;
  double ms_per_step = 0;  // the exact evaluation, with the plan's computing times

  friend bool operator==(const KvLevel&, const KvLevel&) = default;
};

struct KvLevels {
  std::vector<KvLevel> levels;  // by pages, ascending; the first is the plan's own
  std::string exhausted;        // why there is no further one; empty where the last holds the whole context
  std::optional<int> stuck;     // then the device that has no room, if it is for one
};

// What streams at the next level.
enum class OnlineRule : uint8_t {
  kLime,         // what the exact evaluation finds fastest, part by part
  kPaper,        // Eq. 5 to 7: so many attention and MLP blocks more than the plan in every visit
  kWholeLayers,  // no memory planner: so many layers more in every visit, both halves of each
};

struct KvLevelOptions {
  OnlineRule rule = OnlineRule::kLime;
  int max_levels = 12;  // beside the first
  double work = 2e8;    // of the search of one level, in units of SearchBudget
  uint64_t seed = 1;
  bool disks = true;                   // PlanToSpill may put KV on the disks of devices
  const KvHosting* hosting = nullptr;  // and into the memory of others; null: not
  // Once it is true every search ends with what it has: no further level, and PlanToGrow and PlanToSpill with the best plan so far, or
  // with none. Null: never.
  std::function<bool()> cancelled;

  bool Ends() const { return cancelled && cancelled(); }
};

// Of a plan that evicts KV (planner/plan/kv_eviction.h) the first level is all that is kept, nothing streams at any, and what a step takes
// is the mean over the pages between a level and the one before.
//
// Deterministic.  REQUIRES: plan.Validate().ok(), ReadsPerStep::kOnce
KvLevels MakeKvLevels(const Plan& plan, const KvLevelOptions& options = {});

// Over all levels.
double MeanMs(const KvLevels& levels);
// Over those that KV of `from` to `to` pages of a layer goes through, each as often as it has pages for.
double MeanMs(const KvLevels& levels, int64_t from, int64_t to);

// Of the level with all KV, without those in between; infinite where there is none.
double MsAtTheEnd(const Plan& plan, const KvLevelOptions& options);

// The plan, whose rings, pages or hosts have changed, with what then streams best at its first level. ResourceExhausted where it has no
// room.
absl::StatusOr<Plan> Refit(Plan plan, const KvLevelOptions& options);

}  // namespace lime
