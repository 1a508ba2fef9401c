#include "planner/demand/route_curve.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/demand/replay.h"
#include "planner/demand/route_model.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kLayers = 3, kUnits = 24, kPerToken = 4;

RouteLog ModelLog(uint64_t seed, int64_t steps) {
  return *ModelRoutes({.shape = {.model = "m", .layers = kLayers, .units = kUnits, .per_token = kPerToken}, .seed = seed}, steps);
}

TEST(RouteCurveTest, ItHasTheBestPolicyOfEachNumberOfPlaces) {
  const RouteLog log = ModelLog(3, 300);
  const absl::StatusOr<RouteCurve> curve = CurveOfRoutes(log, "log");
  ASSERT_TRUE(curve.ok()) << curve.status();
  ASSERT_EQ(curve->hits.size(), size_t{kUnits});
  ASSERT_EQ(curve->policies.size(), size_t{kUnits});
  for (int32_t n = kPerToken; n <= kUnits; ++n) {
    const std::vector<int32_t> places(kLayers, n);
    const size_t i = static_cast<size_t>(n) - 1;
    const double replayed = SumOf(*Replay(log, curve->policies[i], places)).share();
    EXPECT_NEAR(curve->hits[i], replayed, 0.02) << n << " places: concave, and between two replays a line";
    EXPECT_GE(replayed, SumOf(BestPolicy(log, places)->layers).share() - 0.02) << n;
    EXPECT_GE(curve->hits[i], curve->hits[i - 1]) << n;
  }
  EXPECT_EQ(*CurveOfRoutes(log, "log"), *curve);
}

TEST(RouteCurveTest, AFavouriteThatAlwaysReturnsIsKeptByThePolicyThatCounts) {
  RouteLog log({.model = "m", .layers = 1, .units = 8, .per_token = 2});
  for (int64_t step = 0; step < 210; ++step) {
    // Units 0 and 1 come every other step; in between, pairs of the others pass by in a cycle.
    const auto other = static_cast<int32_t>(2 + 2 * (step / 2 % 3));
    const std::vector<int32_t> units = step % 2 == 0 ? std::vector<int32_t>{0, 1} : std::vector<int32_t>{other, other + 1};
    ASSERT_TRUE(log.Add(step, 0, 1, units).ok());
  }
  const absl::StatusOr<RouteCurve> curve = CurveOfRoutes(log, "log");
  ASSERT_TRUE(curve.ok()) << curve.status();
  for (const UnitPolicy policy : kUnitPolicies)
    EXPECT_LE(SumOf(*Replay(log, policy, std::vector<int32_t>{4})).share(), curve->hits[3] + 1e-12) << kUnitPolicyNames.Of(policy);
  EXPECT_GT(curve->hits[3], 0.45);
}

TEST(RouteCurveTest, PromptsChangeWhatIsInMemoryAndDoNotCount) {
  RouteLog log({.model = "m", .layers = 1, .units = 8, .per_token = 1});
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_TRUE(log.Add(0, 0, 64, all).ok());
  EXPECT_THAT(std::string(CurveOfRoutes(log, "routes.bin").status().message()),
              HasSubstr("routes.bin: no step has one row, so it says nothing about decode steps; record a run of one prompt"));
  for (int32_t unit = 0; unit < 8; ++unit) EXPECT_TRUE(log.Add(1 + unit, 0, 1, std::vector<int32_t>{unit}).ok());
  const absl::StatusOr<RouteCurve> curve = CurveOfRoutes(log, "routes.bin");
  ASSERT_TRUE(curve.ok()) << curve.status();
  EXPECT_EQ(curve->hits[7], 1) << "the prompt has read all units";
}

TEST(RouteCurveTest, OfALongLogTheNewestStepsCount) {
  RouteLog log({.model = "m", .layers = 1, .units = 8, .per_token = 4});
  const std::vector<int32_t> first = {0, 1, 2, 3}, second = {4, 5, 6, 7};
  for (int64_t step = 0; step < 100; ++step) ASSERT_TRUE(log.Add(step, 0, 1, step % 2 == 0 ? first : second).ok());
  for (int64_t step = 100; step < 200; ++step) ASSERT_TRUE(log.Add(step, 0, 1, first).ok());
  EXPECT_DOUBLE_EQ(CurveOfRoutes(log, "log", /*most_choices=*/400)->hits[3], 0.99) << "100 steps of which one misses";
  EXPECT_DOUBLE_EQ(CurveOfRoutes(log, "log", 401)->hits[3], 0.99) << "no half steps";
  EXPECT_LT(CurveOfRoutes(log, "log", 800)->hits[3], 0.6);
  EXPECT_EQ(CurveOfRoutes(log, "log", 1)->hits[3], 0) << "one step at least";
}

}  // namespace
}  // namespace lime
