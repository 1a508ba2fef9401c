// What streams changes while a plan runs: random plans, residencies and moments, by seed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/plan_residency.h"
#include "planner/sim/simulator.h"
#include "tests/planner/kv/simulate_changes.h"
#include "tests/planner/random_clusters.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

#ifdef LIME_SANITIZED
constexpr int kChangeSeeds = 600;
#else
constexpr int kChangeSeeds = 3000;
#endif

// One plan with several residencies, budgets and rings as tight as the largest of them needs.
struct Drawn {
  std::vector<Plan> plans;  // empty: a seed whose plan cannot change
};

Residency RandomResidency(const Plan& plan, RandomPlans& random) {
  Residency residency{.layer_pages = random.Int(0, 200)};
  const int percent = random.Int(0, 100);
  for (int p = 0; p < plan.NumParts(); ++p) {
    if (random.Chance(percent)) residency.streamed.push_back(p);
  }
  return residency;
}

Drawn Draw(uint64_t seed) {
  RandomClusters clusters(seed);
  const RandomClusters::Drawn drawn = clusters.Draw();
  absl::StatusOr<Plan> made = MakePlan(drawn.problem, drawn.choice);
  EXPECT_TRUE(made.ok()) << made.status();
  if (!made.ok() || !made->reads_once) return {};
  Plan plan = *std::move(made);
  for (PlanPart& part : plan.parts) part.kv_pages = 0;
  std::vector<Residency> residencies;
  for (int i = clusters.random().Int(2, 5); i > 0; --i) residencies.push_back(RandomResidency(plan, clusters.random()));
  std::vector<Bytes> rings(plan.devices.size(), 0), most(plan.devices.size(), 0);
  for (const Residency& residency : residencies) {
    Plan changed = plan;
    for (PlanPart& part : changed.parts) part.streamed = false;
    for (const int32_t p : residency.streamed) changed.parts[p].streamed = true;
    for (int p = 0; p < plan.NumParts(); ++p) {
      changed.parts[p].kv_pages = BeginsBlock(plan, p) && HasKv(plan.parts[p].block.kind) ? residency.layer_pages : 0;
    }
    const std::vector<PlanNeed> needs = NeedsOf(changed);
    for (int d = 0; d < plan.NumDevices(); ++d) {
      rings[d] = std::max(rings[d], needs[d].ring);
      most[d] = std::max(most[d], needs[d].weights + needs[d].embedding + needs[d].kv_pages * plan.page_bytes + needs[d].state);
    }
  }
  for (int d = 0; d < plan.NumDevices(); ++d) {
    PlanDevice& device = plan.devices[d];
    device.memory.ring = rings[d] + (clusters.random().Chance(50) ? 0 : clusters.random().Int(0, 60'000'000));
    device.memory.margin = device.least_margin;
    device.budget = device.memory.runtime + device.memory.activations + device.memory.ring + most[d] + device.least_margin;
  }
  Drawn answer;
  for (const Residency& residency : residencies) {
    absl::StatusOr<Plan> changed = WithResidency(plan, residency);
    EXPECT_TRUE(changed.ok()) << changed.status();
    if (!changed.ok()) return {};
    EXPECT_EQ(ResidencyOf(*changed), residency);
    answer.plans.push_back(*std::move(changed));
  }
  return answer;
}

TEST(ResidencyChangeTest, NothingIsMissingAndNoBudgetExceededWheneverItChanges) {
  int changed = 0, full = 0;
  for (uint64_t seed = 1; seed <= kChangeSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Drawn drawn = Draw(seed);
    if (drawn.plans.empty()) continue;
    const Plan& plan = drawn.plans.front();
    const absl::StatusOr<SimulationResult> before = SimulateDecode(plan, {.timeline = false});
    ASSERT_TRUE(before.ok()) << before.status();
    RandomPlans random(seed);
    std::vector<double> times;
    for (size_t i = 1; i < drawn.plans.size(); ++i) times.push_back(random.Number(0, before->step_ends_ms[20]));
    std::ranges::sort(times);
    std::vector<PlanAt> changes;
    for (size_t i = 1; i < drawn.plans.size(); ++i) changes.push_back({times[i - 1], drawn.plans[i]});
    const absl::StatusOr<SimulationResult> result = SimulateChanges(plan, changes, {.steps = 40, .timeline = false});
    ASSERT_TRUE(result.ok()) << result.status() << "\n" << ToJsonText(plan);
    for (int d = 0; d < plan.NumDevices(); ++d) {
      const SimulatedMemory& memory = result->devices[d];
      ASSERT_LE(memory.most_in_ring, plan.devices[d].memory.ring);
      const Bytes room = plan.devices[d].budget - plan.devices[d].least_margin;
      ASSERT_LE(memory.most_used, room);
      changed += memory.last_border >= 0 ? 1 : 0;
      full += memory.most_used > 0 && memory.most_used == room ? 1 : 0;
    }
  }
  EXPECT_GT(changed, kChangeSeeds);
  EXPECT_GT(full, kChangeSeeds / 50) << "budgets that are ever full: the test is of nothing else";
}

TEST(ResidencyChangeTest, TheRateAfterAChangeIsThatOfAFreshPlan) {
  constexpr int kSettling = 64, kMeasured = 64;
  int compared = 0;
  for (uint64_t seed = 1; seed <= kChangeSeeds / 3; ++seed) {
    SCOPED_TRACE(seed);
    const Drawn drawn = Draw(seed);
    if (drawn.plans.empty()) continue;
    const Plan &plan = drawn.plans[0], &after = drawn.plans[1];
    const absl::StatusOr<SimulationResult> fresh = SimulateDecode(after, {.steps = kSettling + kMeasured, .timeline = false});
    const absl::StatusOr<SimulationResult> before = SimulateDecode(plan, {.steps = 10, .timeline = false});
    ASSERT_TRUE(fresh.ok() && before.ok());
    const double at_ms = RandomPlans(seed).Number(0, before->step_ends_ms.back());
    const absl::StatusOr<SimulationResult> result =
        SimulateChanges(plan, {{at_ms, after}}, {.steps = 30 + kSettling + kMeasured, .timeline = false});
    ASSERT_TRUE(result.ok()) << result.status();
    const auto rate = [](const std::vector<double>& ends) { return (ends.back() - ends[ends.size() - 1 - kMeasured]) / kMeasured; };
    ASSERT_NEAR(rate(result->step_ends_ms), rate(fresh->step_ends_ms), 1e-3 * rate(fresh->step_ends_ms)) << ToJsonText(after);
    ++compared;
  }
  EXPECT_GT(compared, kChangeSeeds / 5);
}

// What becomes resident is read in the step at the border for the last time, and what leaves memory
// not before it.
TEST(ResidencyChangeTest, AChangeCostsNoReadOfItsOwn) {
  int kept = 0, left = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    const Drawn drawn = Draw(seed);
    if (drawn.plans.empty()) continue;
    const Plan &plan = drawn.plans[0], &after = drawn.plans[1];
    const absl::StatusOr<SimulationResult> result = SimulateChanges(plan, {{0.01, after}}, {.steps = 24});
    ASSERT_TRUE(result.ok()) << result.status();
    std::vector<int64_t> reads(plan.parts.size(), 0);
    for (const TimelineSpan& span : result->timeline.spans) {
      if (span.kind == TimelineSpan::Kind::kLoad) ++reads[span.part];
    }
    for (int p = 0; p < plan.NumParts(); ++p) {
      const int64_t border = result->devices[plan.stages[StageOf(plan, p)].device].last_border;
      const bool was = plan.parts[p].streamed, is = after.parts[p].streamed;
      ASSERT_GE(border, 0);
      if (was && !is) {
        ASSERT_EQ(reads[p], border + 1);
        ++kept;
      } else if (!was && is) {
        ASSERT_GE(reads[p], 24 - border);
        ++left;
      }
    }
  }
  EXPECT_GT(kept, 300);
  EXPECT_GT(left, 300);
}

Plan FirstDrawn() {
  for (uint64_t seed = 1;; ++seed) {
    if (const Drawn drawn = Draw(seed); !drawn.plans.empty()) return drawn.plans[0];
  }
}

TEST(ResidencyChangeTest, NoResidencyUsesOrSimulatesTheLeastMarginOfAPlan) {
  Plan plan = FirstDrawn();
  const int d = plan.stages.front().device;
  PlanDevice& device = plan.devices[d];
  device.least_margin = device.memory.margin = 5000;
  device.budget = device.memory.total();
  ASSERT_TRUE(plan.Validate().ok()) << plan.Validate();
  const Residency same = ResidencyOf(plan);
  ASSERT_TRUE(WithResidency(plan, same).ok());
  device.memory.margin = 4999, device.budget -= 1;
  EXPECT_THAT(std::string(plan.Validate().message()), HasSubstr(".memory.margin\" = 4999 is outside 5000 to"));
  EXPECT_THAT(std::string(WithResidency(plan, same).status().message()), HasSubstr("margin 4.88 KiB"));
  device.least_margin = 4999;
  // As if a level counted its pages too low.
  const StepShape shape = DecodeShape(plan);
  SimulatedSteps script{.programs = {*Compile(plan, shape)}, .steps = std::vector<int32_t>(10, 0)};
  script.changes.push_back(
      {.at_ms = 0.01, .after = plan, .entering = {*CompileChange(plan, plan, shape)}, .settled = {*Compile(plan, shape)}});
  ASSERT_TRUE(Simulate(plan, script).ok()) << Simulate(plan, script).status();
  script.changes[0].after.devices[d].memory.kv += 1;
  const auto result = Simulate(plan, script);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("must stay free"));
}

TEST(ResidencyChangeTest, WhatDoesNotFitIsRefusedWithTheNumbers) {
  Plan plan = FirstDrawn();
  const auto refusal = [&](const Residency& residency) {
    const absl::StatusOr<Plan> changed = WithResidency(plan, residency);
    EXPECT_FALSE(changed.ok());
    return std::string(changed.status().message());
  };
  EXPECT_THAT(refusal({.layer_pages = -1}), HasSubstr("-1 KV pages"));
  EXPECT_THAT(refusal({.layer_pages = FullLayerPages(plan) + 1}), HasSubstr("but the plan has room for 0 to"));
  EXPECT_THAT(refusal({.streamed = {1, 1}}), HasSubstr("part 1 cannot follow part 1"));
  EXPECT_THAT(refusal({.streamed = {plan.NumParts()}}), HasSubstr("of "));
  for (PlanDevice& device : plan.devices) device.budget = device.memory.runtime;
  EXPECT_THAT(refusal(ResidencyOf(plan)), HasSubstr("but it may use"));
}

}  // namespace
}  // namespace lime
