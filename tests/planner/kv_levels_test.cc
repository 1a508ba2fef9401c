#include "planner/kv_levels.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/batches.h"
#include "planner/sim/simulator.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

// The small model, a first level of `kv_tokens` and the rest of the context to come.
absl::StatusOr<Plan> SmallPlan(int64_t kv_tokens, int32_t sequences = 1) {
  const ModelSpec spec = SmallModel();
  const std::vector<ClusterDevice> devices = {Board("a", 60 * kMiB), Board("b", 80 * kMiB, 20e9), Board("c", 50 * kMiB)};
  const PlanRequest request{.context = 4096, .kv_tokens = kv_tokens, .sequences = sequences, .batches = {sequences}, .piece_bytes = kMiB};
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec, devices, request));
  const FoundPlan found = SearchPlan(problem.instance, {.granularity = Granularity::kWholeBlock, .time_limit_ms = 300});
  if (!found.feasible) return absl::ResourceExhaustedError(found.reason);
  LIME_ASSIGN_OR_RETURN(Plan plan, MakePlan(problem, {.stages = found.plan, .batch = sequences}));
  return GrowsKv(plan) ? PlanToGrow(plan) : plan;
}

TEST(KvLevelsTest, EveryLevelFitsAndIsPredictedAsItIsSimulated) {
  for (const int32_t sequences : {1}) {
    const absl::StatusOr<Plan> plan = SmallPlan(512, sequences);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE(GrowsKv(*plan));
    const KvLevels answer = MakeKvLevels(*plan);
    EXPECT_EQ(answer.exhausted, "");
    ASSERT_GE(answer.levels.size(), 4u);
    EXPECT_EQ(answer.levels.front().residency, ResidencyOf(*plan));
    EXPECT_EQ(answer.levels.back().residency.layer_pages, FullLayerPages(*plan));
    int64_t before = 0;
    for (const KvLevel& level : answer.levels) {
      EXPECT_GT(level.residency.layer_pages, before);
      before = level.residency.layer_pages;
      const absl::StatusOr<Plan> changed = WithResidency(*plan, level.residency);
      ASSERT_TRUE(changed.ok()) << changed.status();
      const absl::StatusOr<SimulationResult> result = SimulateDecode(*changed, {.timeline = false});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_NEAR(result->MsPerStep(), level.ms_per_step, 1e-6 * level.ms_per_step);
    }
    EXPECT_EQ(MakeKvLevels(*plan).levels, answer.levels) << "the same plan, the same levels";
  }
}

TEST(KvLevelsTest, ASmallerFirstLevelIsFasterAndTheLastIsNoSlowerThanStreamingAll) {
  const absl::StatusOr<Plan> grows = SmallPlan(512), whole = SmallPlan(0);
  ASSERT_TRUE(grows.ok() && whole.ok());
  const KvLevels answer = MakeKvLevels(*grows);
  ASSERT_EQ(answer.exhausted, "");
  EXPECT_LT(answer.levels.front().ms_per_step, whole->predicted.ms_per_step);
  Residency all{.layer_pages = FullLayerPages(*grows)};
  for (int p = 0; p < grows->NumParts(); ++p) all.streamed.push_back(p);
  const absl::StatusOr<Plan> streams = WithResidency(*grows, all);
  ASSERT_TRUE(streams.ok()) << streams.status();
  EXPECT_LT(answer.levels.back().ms_per_step, SimulateDecode(*streams, {.timeline = false})->MsPerStep());
}

TEST(KvLevelsTest, ThePapersRuleStreamsWholeBlocksInEveryVisitAndIsNotFaster) {
  const absl::StatusOr<Plan> plan = SmallPlan(512);
  ASSERT_TRUE(plan.ok());
  const KvLevels lime = MakeKvLevels(*plan), paper = MakeKvLevels(*plan, {.rule = OnlineRule::kPaper});
  ASSERT_GE(paper.levels.size(), 1u);
  for (size_t i = 0; i < std::min(lime.levels.size(), paper.levels.size()); ++i) {
    EXPECT_LE(lime.levels[i].ms_per_step, paper.levels[i].ms_per_step * 1.001) << i;
  }
}

TEST(KvLevelsTest, APlanWithAllItsPagesHasOneLevel) {
  const absl::StatusOr<Plan> plan = SmallPlan(0);
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(GrowsKv(*plan));
  EXPECT_EQ(MakeKvLevels(*plan).levels.size(), 1u);
}

}  // namespace
}  // namespace lime
