// The lower bound and the linear program beneath it.
#include "planner/evaluation/lower_bound.h"

#include <cmath>

#include "gtest/gtest.h"
#include "planner/evaluation/evaluator.h"
#include "planner/evaluation/simplex.h"
#include "planner/search/plan_search.h"
#include "tests/planner/random_plans.h"

namespace lime {
namespace {

// A sanitizer takes minutes for all of them and looks at the same paths.
#ifdef LIME_SANITIZED
constexpr uint64_t kBoundSeeds = 60;
#else
constexpr uint64_t kBoundSeeds = 400;
#endif

// Minimise -3 x - 5 y with x <= 4, 2 y <= 12, 3 x + 2 y <= 18: x = 2, y = 6, and one more of each
// limit saves 0, 1.5 and 1.
TEST(SimplexTest, SolvesTheTextbookExample) {
  const LinearSolution solution =
      Minimise({.cost = {-3, -5}, .rows = {{.a = {1, 0}, .b = 4}, {.a = {0, 2}, .b = 12}, {.a = {3, 2}, .b = 18}}});
  ASSERT_TRUE(solution.optimal);
  EXPECT_NEAR(solution.x[0], 2, 1e-12);
  EXPECT_NEAR(solution.x[1], 6, 1e-12);
  EXPECT_NEAR(solution.multipliers[0], 0, 1e-12);
  EXPECT_NEAR(solution.multipliers[1], 1.5, 1e-12);
  EXPECT_NEAR(solution.multipliers[2], 1, 1e-12);
}

TEST(SimplexTest, EquationsHoldAndContradictionsAreFound) {
  const LinearSolution solution = Minimise({.cost = {1, 2}, .rows = {{.a = {1, 1}, .b = 3, .equal = true}, {.a = {1, 0}, .b = 1}}});
  ASSERT_TRUE(solution.optimal);
  EXPECT_NEAR(solution.x[0], 1, 1e-12);
  EXPECT_NEAR(solution.x[1], 2, 1e-12);
  EXPECT_FALSE(Minimise({.cost = {1}, .rows = {{.a = {1}, .b = 3, .equal = true}, {.a = {1}, .b = 1}}}).optimal);
}

// 30 MB on one device of 10 MB that reads 2 MB/ms: 20 MB are read in every step, 10 ms; the
// computing of 6 ms hides behind them.
TEST(LowerBoundTest, OneDeviceMustReadWhatItCannotKeep) {
  Instance instance;
  instance.devices = {{.mem_mb = 10, .disk_mb_per_ms = 2, .comp_ms = {2, 2, 2}}};
  instance.blocks.assign(3, {.mb = 10});
  EXPECT_NEAR(LowerBoundMs(instance), 10, 1e-6);
  instance.devices[0].mem_mb = 30;
  EXPECT_NEAR(LowerBoundMs(instance), 6, 1e-6);
}

// Two devices of 20 MB without disks and 30 MB to hold: at least 10 MB on the slow one, 2 + 2 + 4,
// and a hop of 1.5 there and 0.5 back.
TEST(LowerBoundTest, HopsThatCannotBeAvoidedCount) {
  Instance instance;
  instance.devices = {{.mem_mb = 20, .comp_ms = {2, 2, 2}}, {.mem_mb = 20, .comp_ms = {4, 4, 4}}};
  instance.blocks.assign(3, {.mb = 10});
  instance.net = {.tx_ms = 1, .lat_ms = 0.5};
  EXPECT_NEAR(LowerBoundMs(instance), 10, 1e-6);
  EXPECT_NEAR(SearchPlan(instance, {}).ms_per_step, 10, 1e-9);
}

// The search of larger instances, and any random plan, stays above it too.
TEST(LowerBoundTest, NoPlanIsBelow) {
  uint64_t feasible = 0;
  for (uint64_t seed = 0; seed < kBoundSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(30, 6, 4);
    const StagePlan tight = random.MakePlan(instance);
    random.FitMemory(tight, instance);
    const double bound_ms = LowerBoundMs(instance);
    EXPECT_LE(bound_ms, Evaluator(instance).MsPerStep(tight));
    const FoundPlan found = SearchPlan(instance, {.time_limit_ms = 20, .exhaustive = false});
    if (!found.feasible) continue;
    ++feasible;
    EXPECT_LE(bound_ms, found.ms_per_step);
  }
  EXPECT_GT(feasible, kBoundSeeds / 2);
}

}  // namespace
}  // namespace lime
