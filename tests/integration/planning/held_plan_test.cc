// Which plan is chosen where devices hold only some blocks.

#include "coordinator/planning/held_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "planner/batches.h"
#include "planner/plan/plan_blocks.h"
#include "tests/planner/small_cluster.h"
#include "tests/planner/small_experts.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

// A plan of so many milliseconds in which each device has a layer after another, `first` the first.
Plan AlternatingPlan(const PlanInputs& inputs, int first, double ms) {
  auto problem = MakePlanProblem(inputs.spec, inputs.devices, inputs.request);
  EXPECT_TRUE(problem.ok()) << problem.status();
  PlanChoice choice{.batch = 1};
  choice.stages.embedding_by_rows = true;
  const Instance& instance = problem->instance;
  std::vector<Stage>& stages = choice.stages.stages;
  for (int b = 0; b < instance.NumBlocks(); ++b) {
    const bool begins = b == 0 || instance.blocks[static_cast<size_t>(b)].layer != instance.blocks[static_cast<size_t>(b) - 1].layer;
    if (begins) stages.push_back({(first + static_cast<int>(stages.size())) % instance.NumDevices(), b, b});
    stages.back().hi = b + 1;
  }
  auto plan = MakePlan(*problem, choice);
  EXPECT_TRUE(plan.ok()) << plan.status();
  plan->predicted.ms_per_token = plan->predicted.ms_per_step = ms;
  return *plan;
}

class HeldPlanTest : public ::testing::Test {
 protected:
  HeldPlanTest() {
    inputs_.spec = SmallModel();
    for (const char* name : {"a", "b", "c"}) inputs_.devices.push_back(Board(name, 256 * kMiB));
    inputs_.request = {.model_name = "small", .context = 64, .batches = {1}};
    pushed_ = AlternatingPlan(inputs_, 0, 10);
    best_ = AlternatingPlan(inputs_, 1, 10);
    for (int32_t d = 0; d < 3; ++d) holdings_.homes[pushed_->devices[static_cast<size_t>(d)].name] = BlocksOn(*pushed_, d);
  }
  absl::StatusOr<HeldPlan> Choose(bool may_push) {
    return ChooseHeldPlan(inputs_, holdings_, may_push, [&](const PlanInputs& inputs) -> absl::StatusOr<Plan> {
      const bool held = !inputs.homes.empty() && inputs.homes.size() == holdings_.homes.size();
      const std::optional<Plan>& plan = held ? pushed_ : best_;
      return plan ? absl::StatusOr<Plan>(*plan) : absl::ResourceExhaustedError("no plan fits");
    });
  }

  PlanInputs inputs_;
  cli::ClusterHoldings holdings_;
  std::optional<Plan> pushed_, best_;  // what a search finds for what devices hold, and for anything
};

TEST(HeldPlanOfExpertsTest, ExpertsAreDividedOnlyOverDevicesThatHaveThoseOfAllLayers) {
  PlanInputs inputs;
  inputs.spec = SmallExpertModel();
  for (const char* name : {"a", "b"}) inputs.devices.push_back(Board(name, 256 * kMiB));
  std::vector<BlockId> all, some;
  for (const BlockSpec& block : inputs.spec.blocks) all.push_back(block.id);
  some.assign(all.begin(), all.begin() + 3);  // the embedding and the first layer
  const auto divides = [&](const BlockHomes& homes) {
    cli::ClusterHoldings holdings;
    holdings.homes = homes;
    std::set<bool> said;
    (void)ChooseHeldPlan(inputs, holdings, /*may_push=*/true, [&](const PlanInputs& of) -> absl::StatusOr<Plan> {
      said.insert(of.divides_experts);
      return absl::ResourceExhaustedError("no plan fits");
    });
    EXPECT_EQ(said.size(), 1u);
    return said.contains(true);
  };
  EXPECT_TRUE(divides({}));
  EXPECT_TRUE(divides({{"a", all}, {"b", all}}));
  EXPECT_FALSE(divides({{"a", all}, {"b", some}}));
  EXPECT_FALSE(divides({{"b", {}}})) << "nothing was pushed yet";
  inputs.divides_experts = false;
  EXPECT_FALSE(divides({}));
}

TEST_F(HeldPlanTest, APlanForWhatWasPushedIsPreferredUnlessAnotherIsBetterByMoreThanTheMargin) {
  for (const double ms : {10.0, 10.9}) {
    pushed_->predicted.ms_per_token = ms;
    for (const bool may_push : {false, true}) {
      const auto chosen = Choose(may_push);
      ASSERT_TRUE(chosen.ok()) << chosen.status();
      EXPECT_EQ(chosen->source, PlanSource::kHeld) << ms;
      EXPECT_EQ(chosen->plan, *pushed_);
      EXPECT_FALSE(chosen->faster);
    }
  }
  pushed_->predicted.ms_per_token = 11.1;
  EXPECT_EQ(Choose(true)->plan, *best_) << "its blocks may be pushed";
  const auto chosen = Choose(false);
  EXPECT_EQ(chosen->plan, *pushed_) << "they may not";
  EXPECT_EQ(chosen->faster, *best_);
}

TEST_F(HeldPlanTest, TheBestPlanIsUsedWhereItsBlocksAreThere) {
  best_ = pushed_;
  EXPECT_EQ(Choose(false)->source, PlanSource::kBest);
  holdings_.homes.clear();  // all hold everything
  best_ = AlternatingPlan(inputs_, 2, 10);
  EXPECT_EQ(Choose(false)->plan, *best_);
}

TEST_F(HeldPlanTest, WithoutAPlanForTheBlocksThatAreThereOthersArePushedOrNamed) {
  pushed_.reset();
  EXPECT_EQ(Choose(true)->plan, *best_);
  const absl::Status refused = Choose(false).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("device \"b\" lacks 5 of 5 blocks that the plan needs here (embedding, attention 0"));
  best_.reset();
  EXPECT_TRUE(absl::IsResourceExhausted(Choose(true).status()));
}

TEST_F(HeldPlanTest, NoPlanIsMadeWithBlocksThatCannotBePushed) {
  holdings_.no_push = {"a", "b", "c"};
  best_ = AlternatingPlan(inputs_, 1, 1);
  EXPECT_EQ(Choose(true)->plan, *pushed_) << "the search was told where blocks have to stay";
}

}  // namespace
}  // namespace lime
