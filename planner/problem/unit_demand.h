// What a part on demand is expected to read: the units that a micro-batch chooses, the share of them
// that is in memory, and the time until the others are there.
//
// Values are expected ones. Real steps spread around them.
#pragma once

#include <cstdint>
#include <span>

#include "planner/base/status.h"
#include "planner/problem/plan_problem.h"

namespace lime {

// The units of one layer, and the memory for some of them.
struct UnitCounts {
  int64_t units = 0;
  int64_t per_row = 0;  // chosen by every row
  int64_t places = 0;   // 1 to units
};

// The places of a whole layer with `units` units that has the same share of them in memory.
int64_t WholePlaces(int64_t units, const UnitShare& share);

// Units are guessed for at most this many rows (Backend::kMostGuessRows).
inline constexpr int64_t kMostGuessedRows = 4;

// The units that one micro-batch chooses.
struct UnitDemand {
  double chosen = 0;     // different ones
  double hit_share = 1;  // of them, in memory

  double Misses() const { return chosen * (1 - hit_share); }
};

// The share of one row's units that is in memory. `hits`: the share for each number of places, from
// 1, of a replayed route; the last one also for more places. Empty: a generic curve, concave, through
// what others measured: 60 % at 12 % of the units, 78 % at 25 %, all at 100 %.
double HitShare(std::span<const double> hits, int64_t units, int64_t places);

// InvalidArgument unless every share is from 0 to 1 and none is smaller than the one before.
absl::Status CheckHits(std::span<const double> hits);

// A decode step with `rows` rows.
//
// Reading: recency serves single rows. The more units the rows choose together, the less it matters
// which units are in memory. The share falls linearly from HitShare, for the units of one row, to
// places / units, for all units.
UnitDemand DemandOfStep(const UnitCounts& counts, std::span<const double> hits, int64_t rows);

// A chunk of a prompt, whose units are read in one ascending sweep.
//
// Reading: units that are in memory at its begin are computed first, and serve it. They are no more
// likely to be chosen than others. The chunk before may have read any of them, so recency counts
// nothing.
UnitDemand DemandOfChunk(const UnitCounts& counts, int64_t rows);

// The part of the reads that no computation hides, in ms. `unit_ms`: to read one unit, the reads one
// after another. `compute_ms`: to compute all chosen units.
//
// Reading: only the units in memory are sure to be computed while others are read. With less than one
// expected miss, a micro-batch has one read with this probability, and otherwise none.
double UncoveredReadMs(const UnitDemand& demand, double unit_ms, double compute_ms);

}  // namespace lime
