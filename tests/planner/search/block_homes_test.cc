// Plans for devices that hold only some blocks of a model.

#include "planner/search/block_homes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/batches.h"
#include "planner/plan/plan_blocks.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

constexpr double kLimitMs = 60;  // of work: nothing looks at a clock

class BlockHomesTest : public ::testing::Test {
 protected:
  PlanProblem Problem(int64_t context) const {
    const auto problem = MakePlanProblem(spec_, devices_, {.model_name = "small", .context = context, .batches = {1}});
    EXPECT_TRUE(problem.ok()) << problem.status();
    return *problem;
  }
  // The best plan that reads nothing which is not at home.
  absl::StatusOr<Plan> Search(const BlockHomes& homes, int64_t context) const {
    PlanProblem problem = Problem(context);
    KeepAtHome(homes, problem);
    SearchOptions options{.granularity = Granularity::kWholeBlock, .time_limit_ms = kLimitMs};
    options.seeds = PlansAtHome(homes, problem);
    const auto best = PlanBatches(Strategy::kLime, problem.instance, options);
    EXPECT_TRUE(best.ok()) << best.status();
    if (!best->found.feasible) return absl::ResourceExhaustedError(best->found.reason);
    return MakePlan(problem, {.stages = best->found.plan, .microbatches = best->microbatches, .batch = best->batch});
  }
  static BlockHomes HomesOf(const Plan& plan) {
    BlockHomes homes;
    for (int32_t d = 0; d < plan.NumDevices(); ++d) homes[plan.devices[static_cast<size_t>(d)].name] = BlocksOn(plan, d);
    return homes;
  }

  const ModelSpec spec_ = SmallModel();  // 132 MB
  const std::vector<ClusterDevice> devices_ = {Board("a", 56 * kMiB), Board("b", 56 * kMiB, 9e9), Board("c", 56 * kMiB, 8e9)};
};

TEST_F(BlockHomesTest, WhereEveryBlockHasOneHomeTheStagesAreThoseAndWhatStreamsFollowsTheContext) {
  const auto pushed = Search({}, 2048);
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  const BlockHomes homes = HomesOf(*pushed);
  ASSERT_TRUE(IsAtHome(homes, *pushed));
  const auto again = Search(homes, 16);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(IsAtHome(homes, *again));
  EXPECT_EQ(again->stages, pushed->stages);
  // As good as the plan that was pushed, with what that streams, would be for so short a context.
  PlanChoice choice{.stages = {.stages = pushed->stages, .embedding_by_rows = pushed->embedding == EmbeddingPlacement::kByRows},
                    .batch = 1};
  for (int32_t p = 0; p < pushed->NumParts(); ++p) {
    if (pushed->parts[static_cast<size_t>(p)].streamed) choice.stages.streamed.push_back(p);
  }
  const auto same = MakePlan(Problem(16), choice);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_LE(again->predicted.ms_per_step, same->predicted.ms_per_step * (1 + 1e-9));
}

TEST_F(BlockHomesTest, DevicesThatHoldMoreAreNotKeptToTheirShare) {
  BlockHomes homes = HomesOf(*Search({}, 2048));
  for (const BlockSpec& block : spec_.blocks) {
    if (!HoldsBlock(homes, "a", block.id)) homes["a"].push_back(block.id);
  }
  const auto plan = Search(homes, 64);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(IsAtHome(homes, *plan));
  homes.erase("a");  // it is not named where it holds all
  const auto same = Search(homes, 64);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->stages, plan->stages);
}

TEST_F(BlockHomesTest, WhatIsMissingIsNamedByDevice) {
  const auto plan = Search({}, 64);
  ASSERT_TRUE(plan.ok()) << plan.status();
  BlockHomes homes = HomesOf(*plan);
  const int32_t first = plan->stages.front().device;
  std::vector<BlockId>& held = homes[plan->devices[static_cast<size_t>(first)].name];
  const BlockId gone = held.back();
  held.pop_back();
  EXPECT_FALSE(IsAtHome(homes, *plan));
  EXPECT_THAT(AwayFromHome(homes, *plan, first), ::testing::ElementsAre(gone));
}

TEST_F(BlockHomesTest, WithoutAHomeForABlockNoPlanIsAtHome) {
  BlockHomes homes = HomesOf(*Search({}, 64));
  for (const BlockId id : {BlockId{BlockKind::kMlp, 2}, BlockId{BlockKind::kEmbedding, 0}}) {
    BlockHomes without = homes;
    for (auto& [name, blocks] : without) std::erase(blocks, id);
    EXPECT_TRUE(PlansAtHome(without, Problem(64)).empty()) << BlockName(id);
    const auto plan = Search(without, 64);
    EXPECT_FALSE(plan.ok() && IsAtHome(without, *plan)) << BlockName(id);
  }
}

TEST_F(BlockHomesTest, WithoutHomesNothingChanges) {
  PlanProblem problem = Problem(64);
  const std::vector<double> before = problem.instance.devices[0].comp_ms;
  KeepAtHome({}, problem);
  EXPECT_EQ(problem.instance.devices[0].comp_ms, before);
  EXPECT_TRUE(PlansAtHome({}, problem).empty());
}

}  // namespace
}  // namespace lime
