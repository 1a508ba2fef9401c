#include "planner/problem/unit_demand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "planner/plan/model/unit_choice.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

// The expected number of different units, by following the number of different ones from row to row.
// `per_row` is one.
double CountedUnits(int64_t units, int64_t rows) {
  std::vector<double> chance(static_cast<size_t>(units) + 1, 0);
  chance[0] = 1;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> next(chance.size(), 0);
    for (size_t k = 0; k < chance.size(); ++k) {
      const double known = static_cast<double>(k) / static_cast<double>(units);
      next[k] += chance[k] * known;
      if (k + 1 < chance.size()) next[k + 1] += chance[k] * (1 - known);
    }
    chance = next;
  }
  double mean = 0;
  for (size_t k = 0; k < chance.size(); ++k) mean += chance[k] * static_cast<double>(k);
  return mean;
}

TEST(UnitChoiceTest, ExpectsTheMeanNumberOfDifferentUnits) {
  for (const int64_t units : {1, 3, 8}) {
    for (int64_t rows = 0; rows <= 6; ++rows) EXPECT_NEAR(DistinctUnits(units, 1, rows), CountedUnits(units, rows), 1e-12);
  }
  EXPECT_EQ(DistinctUnits(128, 8, 0), 0);
  EXPECT_NEAR(DistinctUnits(128, 8, 1), 8, 1e-12);
  EXPECT_NEAR(DistinctUnits(128, 8, 2), 8 + 8 * (1 - 8.0 / 128), 1e-12);
  EXPECT_NEAR(DistinctUnits(128, 8, 400), 128, 1e-8) << "a few hundred rows choose all";
}

TEST(UnitDemandTest, TheGenericCurveIsConcaveAndPassesWhatWasMeasured) {
  EXPECT_NEAR(HitShare({}, 100, 12), 0.60, 1e-12);
  EXPECT_NEAR(HitShare({}, 100, 25), 0.78, 1e-12);
  EXPECT_NEAR(HitShare({}, 100, 38), 0.82, 0.005) << "the goal for 38 % in docs of families";
  EXPECT_EQ(HitShare({}, 100, 100), 1);
  double before = 0, gain = 1;
  for (int64_t places = 1; places <= 100; ++places) {
    const double hits = HitShare({}, 100, places);
    EXPECT_GT(hits, before) << places;
    EXPECT_LE(hits - before, gain + 1e-12) << places;
    gain = hits - before, before = hits;
  }
}

TEST(UnitDemandTest, ACurveOfTheModelReplacesTheGenericOne) {
  const std::vector<double> hits = {0.1, 0.3, 0.4};
  EXPECT_EQ(HitShare(hits, 8, 2), 0.3);
  EXPECT_EQ(HitShare(hits, 8, 7), 0.4) << "the last share is also that of more places";
  EXPECT_EQ(HitShare(hits, 8, 8), 1) << "with places for all, all are there";
  EXPECT_TRUE(CheckHits(hits).ok());
  EXPECT_TRUE(CheckHits({}).ok());
  const auto refusal = [](const std::vector<double>& shares) { return std::string(CheckHits(shares).message()); };
  EXPECT_THAT(refusal({0.5, 0.4}), HasSubstr("unit_hits[1] = 0.4 is outside 0.5 to 1"));
  EXPECT_THAT(refusal({1.5}), HasSubstr("unit_hits[0] = 1.5"));
  EXPECT_THAT(refusal({std::numeric_limits<double>::quiet_NaN()}), HasSubstr("unit_hits[0] = nan"));
}

TEST(UnitDemandTest, OneRowHasTheCurveAndManyRowsHaveTheShareOfPlaces) {
  const UnitCounts counts{.units = 128, .per_row = 8, .places = 32};
  const UnitDemand one = DemandOfStep(counts, {}, 1), many = DemandOfStep(counts, {}, 2000);
  EXPECT_NEAR(one.chosen, 8, 1e-12);
  EXPECT_NEAR(one.hit_share, 0.78, 1e-12);
  EXPECT_NEAR(one.Misses(), 8 * 0.22, 1e-12);
  EXPECT_NEAR(many.hit_share, 0.25, 1e-6);
  EXPECT_NEAR(many.Misses(), 96, 1e-3) << "all units but those in memory";
  double before = one.Misses();
  for (int64_t rows = 2; rows <= 64; ++rows) {
    const double misses = DemandOfStep(counts, {}, rows).Misses();
    EXPECT_GT(misses, before) << rows;
    before = misses;
  }
}

TEST(UnitDemandTest, PlacesForAllUnitsMissNothing) {
  for (const int64_t rows : {1, 5, 500}) {
    EXPECT_EQ(DemandOfStep({.units = 16, .per_row = 2, .places = 16}, {}, rows).Misses(), 0);
    EXPECT_EQ(DemandOfChunk({.units = 16, .per_row = 2, .places = 16}, rows).Misses(), 0);
  }
  const UnitDemand all = DemandOfStep({.units = 4, .per_row = 4, .places = 1}, {}, 1);
  EXPECT_EQ(all.chosen, 4) << "every row chooses all";
  EXPECT_EQ(all.hit_share, 0.25) << "recency serves nothing then";
}

TEST(UnitDemandTest, AChunkReadsWhatIsNotInMemoryAtItsBegin) {
  const UnitDemand chunk = DemandOfChunk({.units = 128, .per_row = 8, .places = 48}, 512);
  EXPECT_NEAR(chunk.chosen, 128, 1e-8);
  EXPECT_NEAR(chunk.Misses(), 80, 1e-8);
}

TEST(UnitDemandTest, OnlyTheComputationOfUnitsInMemoryHidesReads) {
  // Eight chosen, two missed: six of eight units are computed in 0.75 of 4 ms.
  EXPECT_DOUBLE_EQ(UncoveredReadMs({.chosen = 8, .hit_share = 0.75}, /*unit_ms=*/5, /*compute_ms=*/4), 2 * 5 - 3);
  EXPECT_EQ(UncoveredReadMs({.chosen = 8, .hit_share = 0.75}, 1, 4), 0) << "two reads of 1 ms are shorter";
  // Half a miss: every other step reads one unit, while 7.5 of 8 are computed.
  EXPECT_DOUBLE_EQ(UncoveredReadMs({.chosen = 8, .hit_share = 0.9375}, 5, 4), 0.5 * (5 - 3.75));
  EXPECT_EQ(UncoveredReadMs({.chosen = 8, .hit_share = 1}, 5, 4), 0);
}

}  // namespace
}  // namespace lime
