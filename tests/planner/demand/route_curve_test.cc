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
    EXPECT_GE(curve->hits[i], replayed - 1e-12) << n;
    EXPECT_LE(curve->hits[i], replayed + 0.02) << n << " places: a concave curve is a little above the replay";
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
  RouteLog log({.model = "m", .layers = 1, .units = 64, .per_token = 32});
  std::vector<int32_t> first(32), second(32);
  for (int32_t i = 0; i < 32; ++i) first[static_cast<size_t>(i)] = i, second[static_cast<size_t>(i)] = 32 + i;
  const int64_t steps = kCurveChoices / 32;
  for (int64_t step = 0; step < steps; ++step) ASSERT_TRUE(log.Add(step, 0, 1, step % 2 == 0 ? first : second).ok());
  for (int64_t step = 0; step < steps; ++step) ASSERT_TRUE(log.Add(steps + step, 0, 1, first).ok());
  const absl::StatusOr<RouteCurve> curve = CurveOfRoutes(log, "log");
  ASSERT_TRUE(curve.ok()) << curve.status();
  EXPECT_GT(curve->hits[31], 0.999) << "the steps that alternate are too old";
}

}  // namespace
}  // namespace lime
