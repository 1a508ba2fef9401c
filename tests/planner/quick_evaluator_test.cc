// The quick evaluation is the exact one, but for rounding.
#include "planner/evaluation/quick_evaluator.h"

#include <chrono>
#include <cmath>

#include "gtest/gtest.h"
#include "planner/evaluation/evaluator.h"
#include "planner/plan/instance/plan_json.h"
#include "tests/planner/random_plans.h"

namespace lime {
namespace {

TEST(QuickEvaluatorTest, AgreesWithTheExactEvaluation) {
  int feasible = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(seed % 4 == 0 ? 40 : 10, 4, 4);
    const StagePlan tight = random.MakePlan(instance);
    if (random.Chance(90)) random.FitMemory(tight, instance);
    Evaluator exact(instance);
    QuickEvaluator quick(instance);
    for (const StagePlan& plan : {tight, random.MakePlan(instance), random.MakePlan(instance)}) {
      const double ms = exact.MsPerStep(plan);
      const Assignment assignment = ToAssignment(plan, instance.NumBlocks());
      ASSERT_EQ(ToPlan(assignment), plan);
      const double quick_ms = quick.MsPerStep(assignment);
      ASSERT_EQ(std::isfinite(quick_ms), std::isfinite(ms));
      if (!std::isfinite(ms)) continue;
      ++feasible;
      ASSERT_NEAR(quick_ms, ms, 1e-7 * ms + 1e-12) << ToJson(plan);
      EXPECT_EQ(quick.MsPerStep(assignment, ms * 1.000001 + 1e-9), quick_ms) << "refused though better than the limit";
    }
  }
  EXPECT_GT(feasible, 4000);
}

}  // namespace
}  // namespace lime
