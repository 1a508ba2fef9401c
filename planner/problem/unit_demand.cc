#include "planner/problem/unit_demand.h"

#include <algorithm>
#include <array>
#include <utility>

#include "planner/base/check.h"
#include "planner/plan/model/unit_choice.h"

namespace lime {
namespace {

// Share of units in memory, share of hits.
constexpr std::array<std::pair<double, double>, 4> kGenericHits = {{{0, 0}, {0.12, 0.60}, {0.25, 0.78}, {1, 1}}};

double GenericHitShare(double kept) {
  size_t i = 1;
  while (i + 1 < kGenericHits.size() && kept > kGenericHits[i].first) ++i;
  const auto [x0, y0] = kGenericHits[i - 1];
  const auto [x1, y1] = kGenericHits[i];
  return y0 + (y1 - y0) * (kept - x0) / (x1 - x0);
}

double Kept(const UnitCounts& counts) {
  return static_cast<double>(counts.places) / static_cast<double>(counts.units);
}

}  // namespace

double HitShare(std::span<const double> hits, int64_t units, int64_t places) {
  LIME_CHECK(places >= 1 && places <= units) << places << " of " << units;
  if (places == units) return 1;
  if (hits.empty()) return GenericHitShare(static_cast<double>(places) / static_cast<double>(units));
  return hits[static_cast<size_t>(std::min(places, std::ssize(hits)) - 1)];
}

int64_t WholePlaces(int64_t units, const UnitShare& share) {
  return std::clamp<int64_t>(units * share.places / share.units, 1, units);
}

absl::Status CheckHits(std::span<const double> hits) {
  double before = 0;
  for (size_t i = 0; i < hits.size(); ++i) {
    const bool grows = hits[i] >= before && hits[i] <= 1;  // false for NaN
    if (!grows) return Invalid("planning: unit_hits[", i, "] = ", hits[i], " is outside ", before, " to 1");
    before = hits[i];
  }
  return absl::OkStatus();
}

UnitDemand DemandOfStep(const UnitCounts& counts, std::span<const double> hits, int64_t rows) {
  const double chosen = DistinctUnits(counts.units, counts.per_row, rows);
  const double one = HitShare(hits, counts.units, counts.places), all = Kept(counts);
  const auto least = static_cast<double>(counts.per_row), most = static_cast<double>(counts.units);
  const double spread = most > least ? std::clamp((chosen - least) / (most - least), 0.0, 1.0) : 1;
  return {.chosen = chosen, .hit_share = std::clamp(one + (all - one) * spread, 0.0, 1.0)};
}

UnitDemand DemandOfChunk(const UnitCounts& counts, int64_t rows) {
  return {.chosen = DistinctUnits(counts.units, counts.per_row, rows), .hit_share = Kept(counts)};
}

double UncoveredReadMs(const UnitDemand& demand, double unit_ms, double compute_ms) {
  const double misses = demand.Misses(), any = std::min(1.0, misses);
  return std::max(0.0, misses * unit_ms - any * compute_ms * demand.hit_share);
}

}  // namespace lime
