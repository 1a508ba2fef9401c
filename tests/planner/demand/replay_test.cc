// Policies, replays, curves and places, against definitions that are slow and plain.
#include "planner/demand/replay.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/demand/divide_places.h"
#include "planner/demand/route_model.h"
#include "tests/cases.h"

namespace lime {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RouteLog RandomLog(uint64_t seed, int32_t units, int32_t per_visit, int steps) {
  std::mt19937_64 random(seed);
  RouteLog log({.model = "m", .layers = 1, .units = units});
  for (int step = 0; step < steps; ++step) {
    std::set<int32_t> chosen;
    while (std::ssize(chosen) < 1 + static_cast<int64_t>(random() % per_visit)) {
      chosen.insert(static_cast<int32_t>(std::min(random() % units, random() % units)));
    }
    EXPECT_TRUE(log.Add(step, 0, 1, std::vector<int32_t>(chosen.begin(), chosen.end())).ok());
  }
  return log;
}

// What each policy's words say, with sets and sums over all visits. For visits of no more units than
// there are places.
class PlainCache {
 public:
  PlainCache(UnitPolicy policy, int32_t places) : policy_(policy), places_(places) {}

  int64_t Visit(std::span<const int32_t> chosen) {
    visits_.emplace_back(chosen.begin(), chosen.end());
    int64_t hits = 0;
    std::vector<int32_t> misses;
    for (const int32_t unit : chosen) (kept_.contains(unit) ? void(++hits) : misses.push_back(unit));
    while (std::ssize(kept_) + std::ssize(misses) > places_) kept_.erase(Victim());
    for (const int32_t unit : misses) kept_.insert(unit), read_[unit] = ++reads_;
    return hits;
  }

 private:
  int32_t Victim() const {
    std::vector<std::pair<double, int32_t>> ranked;
    for (const int32_t unit : kept_) {
      if (!visits_.back().contains(unit)) ranked.emplace_back(Value(unit), unit);
    }
    return std::ranges::min(ranked).second;
  }
  double Value(int32_t unit) const {
    double last = 0, uses = 0;
    for (size_t v = 0; v < visits_.size(); ++v) {
      if (!visits_[v].contains(unit)) continue;
      last = static_cast<double>(v);
      uses += std::exp2(-static_cast<double>(visits_.size() - v) / kLfuHalfLife);
    }
    if (policy_ == UnitPolicy::kLru) return last;
    if (policy_ == UnitPolicy::kLfu) return uses;
    return static_cast<double>(read_.at(unit));  // those of the last visit are no victims
  }

  const UnitPolicy policy_;
  const int64_t places_;
  std::vector<std::set<int32_t>> visits_;
  std::set<int32_t> kept_;
  std::map<int32_t, int64_t> read_;
  int64_t reads_ = 0;
};

TEST(ReplayTest, PoliciesHitWhatTheirDefinitionsHit) {
  for (int seed = 0; seed < Cases(60, 2000); ++seed) {
    const RouteLog log = RandomLog(static_cast<uint64_t>(seed), 12, 4, 60);
    for (const UnitPolicy policy : kUnitPolicies) {
      const int32_t places = 4 + seed % 8;
      PlainCache plain(policy, places);
      int64_t hits = 0;
      for (const RouteLog::Visit& visit : log.visits()) hits += plain.Visit(log.units_of(visit));
      const LayerHits replayed = Replay(log, policy, std::vector<int32_t>{places})->front();
      // Sums that differ by less than the arithmetic of integers can tell may tip a choice.
      const int64_t slack = policy == UnitPolicy::kLfu ? 2 : 0;
      EXPECT_NEAR(static_cast<double>(replayed.hits), static_cast<double>(hits), static_cast<double>(slack)) << seed;
      EXPECT_EQ(replayed.uses(), log.num_choices());
    }
  }
}

TEST(ReplayTest, ASweepKeepsTheHitsAndTheLastUnitsThatWentThroughTheRing) {
  LayerPlaces layer({.units = 10, .most_places = 4, .ring_places = 2});
  for (int32_t place = 0; place < 4; ++place) layer.AddMemory(place);
  layer.Visit(std::vector<int32_t>{1, 2, 3, 9});
  layer.BeginVisit(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6});
  EXPECT_TRUE(layer.sweeps());
  EXPECT_THAT(layer.misses(), ElementsAre(0, 4, 5, 6));
  EXPECT_EQ(layer.UnitIn(layer.PlaceOfMiss(0)), 9) << "not chosen";
  EXPECT_EQ(layer.UnitIn(layer.PlaceOfMiss(1)), 1) << "a ring of two takes the place of one hit";
  EXPECT_EQ(layer.PlaceOfMiss(2), layer.PlaceOfMiss(0));
}

TEST(ReplayTest, StepsBeforeTheWarmUpAndPromptsDoNotCount) {
  RouteLog log({.model = "m", .layers = 1, .units = 4});
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(log.Add(step, 0, step == 1 ? 9 : 1, std::vector<int32_t>{0, 1}).ok());
  const std::vector<int32_t> places = {2};
  EXPECT_EQ(Replay(log, UnitPolicy::kLru, places)->front(), (LayerHits{.hits = 4, .misses = 2}));
  EXPECT_EQ(Replay(log, UnitPolicy::kLru, places, {.warm_up = 1})->front(), (LayerHits{.hits = 4, .misses = 0}));
  EXPECT_EQ(Replay(log, UnitPolicy::kLru, places, {.warm_up = 1, .most_rows = 1})->front(), (LayerHits{.hits = 2, .misses = 0}));
  EXPECT_THAT(std::string(Replay(log, UnitPolicy::kLru, std::vector<int32_t>{0}).status().message()), HasSubstr("no place"));
  EXPECT_THAT(std::string(Replay(log, UnitPolicy::kLru, std::vector<int32_t>{1, 1}).status().message()), HasSubstr("2 layers"));
}

TEST(ReplayTest, TheBestPolicyHasTheMostHits) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RouteLog log = RandomLog(seed, 16, 3, 80);
    const std::vector<int32_t> places = {6};
    const PolicyChoice best = *BestPolicy(log, places);
    for (const UnitPolicy policy : kUnitPolicies) {
      EXPECT_GE(SumOf(best.layers).hits, SumOf(*Replay(log, policy, places)).hits);
    }
    EXPECT_EQ(best.layers, *Replay(log, best.policy, places));
  }
}

TEST(HitCurveTest, CurvesAreConcaveAndNowhereBelowReplays) {
  const RouteLog log = *ModelRoutes({.shape = {.model = "m", .layers = 2, .units = 24, .per_token = 3}}, 200);
  const std::vector<HitCurve> curves = HitCurvesOf(log, UnitPolicy::kLru);
  ASSERT_EQ(curves.size(), 2u);
  const HitCurve& curve = curves[1];
  EXPECT_EQ(curve.At(0), 0);
  for (int32_t n = 1; n <= 24; ++n) {
    EXPECT_GE(curve.Gain(n - 1), 0) << n;
    EXPECT_LE(curve.Gain(n), curve.Gain(n - 1) + 1e-12) << n;
    const LayerHits hits = (*Replay(log, UnitPolicy::kLru, std::vector<int32_t>{n, n}))[1];
    const bool measured = n == 24 || n == 1;
    EXPECT_GE(curve.At(n), measured ? hits.share() - 1e-12 : hits.share() - 0.01) << n;
    EXPECT_LE(curve.At(n), hits.share() + (n >= 6 ? 0.03 : 0.3)) << n;
  }
  EXPECT_EQ(curve.At(24), (*Replay(log, UnitPolicy::kLru, std::vector<int32_t>{24, 24}))[1].share());
}

TEST(HitCurveTest, TheEnvelopeIsTheSmallestConcaveOneAroundThePoints) {
  const std::vector<HitPoint> points = {{1, 2}, {2, 3}, {4, 9}, {5, 8}};
  const HitCurve curve = HitCurve::Around(points, 10, 6);
  const double expected[] = {0, 0.225, 0.45, 0.675, 0.9, 0.9, 0.9, 0.9};
  for (int n = 0; n < 8; ++n) EXPECT_THAT(curve.At(n), DoubleNear(expected[n], 1e-12)) << n;
  EXPECT_EQ(HitCurve::Around({}, 0, 3).At(3), 0);
}

TEST(HitCurveTest, RowsThatChooseEvenlyHitTheExpectedUnits) {
  EXPECT_EQ(ExpectedUnits(0, 8, 128), 0);
  EXPECT_THAT(ExpectedUnits(1, 8, 128), DoubleNear(8, 1e-9));
  EXPECT_THAT(ExpectedUnits(3, 1, 2), DoubleNear(2 * (1 - 0.125), 1e-12));
  EXPECT_GT(ExpectedUnits(256, 8, 128), 127.9);
}

// The most bytes saved by any division.
double BestSaving(const std::vector<LayerDemand>& layers, Bytes budget, size_t i = 0) {
  if (i == layers.size()) return 0;
  double best = -1e300;
  for (int32_t n = layers[i].least; n <= std::min(layers[i].most, layers[i].hits.units()); ++n) {
    if (n * layers[i].unit_bytes > budget) break;
    const double rest = BestSaving(layers, budget - n * layers[i].unit_bytes, i + 1);
    best = std::max(best, rest + layers[i].uses * static_cast<double>(layers[i].unit_bytes) * layers[i].hits.At(n));
  }
  return best;
}

TEST(DividePlacesTest, NoDivisionOfEqualUnitsSavesMore) {
  std::mt19937_64 random(5);
  for (int seed = 0; seed < Cases(60, 1000); ++seed) {
    std::vector<LayerDemand> layers;
    double all = 0;
    for (int i = 0; i < 3; ++i) {
      const RouteLog log = RandomLog(random(), 8, 3, 40);
      layers.push_back({.hits = HitCurvesOf(log, UnitPolicy::kLru).front(),
                        .unit_bytes = 10,
                        .uses = static_cast<double>(1 + random() % 4),
                        .least = static_cast<int32_t>(random() % 2),
                        .most = static_cast<int32_t>(2 + random() % 9)});
      all += layers.back().uses * 10;
    }
    const Bytes budget = 30 + static_cast<Bytes>(random() % 150);
    const std::vector<int32_t> places = *DividePlaces(layers, budget);
    EXPECT_THAT(all - ExpectedReadBytes(layers, places), DoubleNear(BestSaving(layers, budget), 1e-6)) << seed;
    EXPECT_EQ(places, *DividePlaces(layers, budget));
    EXPECT_LE((places[0] + places[1] + places[2]) * 10, budget);
  }
}

TEST(DividePlacesTest, WhatDoesNotFitIsRefused) {
  const HitCurve curve = *DefaultHitCurve(8, 2);
  const auto refused = [&](const LayerDemand& layer, Bytes budget) {
    return std::string(DividePlaces(std::vector<LayerDemand>{layer}, budget).status().message());
  };
  EXPECT_EQ(refused({.hits = curve, .unit_bytes = 5, .uses = 2, .least = 2}, 10), "");
  EXPECT_THAT(refused({.hits = curve, .unit_bytes = 5, .uses = 2, .least = 2}, 9), HasSubstr("give more memory"));
  EXPECT_THAT(refused({.hits = curve, .unit_bytes = Bytes{1} << 40, .uses = 2, .least = 8}, INT64_MAX), "");
  EXPECT_THAT(refused({.hits = curve, .unit_bytes = 0, .uses = 2}, 10), HasSubstr("0 bytes"));
  EXPECT_THAT(refused({.hits = curve, .unit_bytes = 1, .uses = -1}, 10), HasSubstr("uses -1"));
  EXPECT_THAT(refused({.hits = curve, .unit_bytes = 1, .uses = 1, .least = 9}, 10), HasSubstr("at most 8"));
}

TEST(RouteModelTest, DefaultsChooseAsPublishedModelsDo) {
  const RouteLog log = *ModelRoutes({.shape = {.model = "m", .layers = 4, .units = 128, .per_token = 8}}, 512);
  const auto share = [&](int32_t places) { return SumOf(*Replay(log, UnitPolicy::kLru, std::vector<int32_t>(4, places))).share(); };
  EXPECT_NEAR(share(8), 0.43, 0.04) << "units of the token before";
  EXPECT_NEAR(share(15), 0.60, 0.07);
  EXPECT_NEAR(share(32), 0.785, 0.035);
  EXPECT_GE(share(77), 0.84);
}

TEST(RouteModelTest, TheSameSeedMakesTheSameRoutes) {
  RouteModelOptions options{.shape = {.model = "m", .layers = 2, .units = 16, .per_token = 4}};
  EXPECT_EQ(*ModelRoutes(options, 20), *ModelRoutes(options, 20));
  const RouteLog first = *ModelRoutes(options, 20);
  options.seed = 2;
  EXPECT_FALSE(*ModelRoutes(options, 20) == first);
  options.recent = 2;
  EXPECT_FALSE(RouteModel::Create(options).ok());
}

TEST(RouteModelTest, ManyRowsChooseNearlyAllUnits) {
  const RouteShape shape{.model = "m", .layers = 1, .units = 32, .per_token = 4};
  RouteModel model = *RouteModel::Create({.shape = shape});
  RouteLog log(shape);
  ASSERT_TRUE(model.AddStep(300, log).ok());
  EXPECT_GT(log.num_choices(), 28);
  EXPECT_TRUE(DefaultHitCurve(40, 40).ok()) << "rows that choose everything";
}

}  // namespace
}  // namespace lime
