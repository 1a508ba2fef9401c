// What a plan depends on, and what it and a search are told where that is measured otherwise.
#include "coordinator/planning/plan_rates.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/plan_blocks.h"
#include "tests/planner/small_experts.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr double kMbit = 125'000;

ClusterDevice Device(const std::string& name) {
  ClusterDevice device{.name = name};
  device.profile = {.read_bytes_per_second = 1e9, .flops = 1e10, .block_overhead_ms = 0.5};
  device.profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 2e8, .latency_ms = 0.1}};
  device.profile.models = {{.key = "m", .step_overhead_ms = 2, .points = {{.kind = BlockKind::kMlp, .rows = 1, .ms = 4}}}};
  return device;
}

// Of three devices two are used, a twice; the link from a to b is known.
class PlanRatesTest : public ::testing::Test {
 protected:
  PlanRatesTest() {
    inputs_.devices = {Device("a"), Device("b"), Device("c")};
    inputs_.devices[0].profile.links = {{.peer = "b", .bytes_per_second = 200 * kMbit, .latency_ms = 1}};
    inputs_.request.default_link = {.bytes_per_second = 50 * kMbit, .latency_ms = 2};
    inputs_.spec.config.hidden_size = 12'500;
    inputs_.spec.working_dtype = DType::kBF16;
    plan_.batch = 1;
    plan_.devices = {{.name = "b", .disk_mb_per_ms = 0.2, .disk_lat_ms = 0.1}, {.name = "a", .disk_mb_per_ms = 0.4, .disk_lat_ms = 0.2}};
    plan_.parts = {{.decode_ms = 10}, {.decode_ms = 20}, {.decode_ms = 30}};
    plan_.stages = {{.device = 1, .lo = 0, .hi = 1}, {.device = 0, .lo = 1, .hi = 2}, {.device = 1, .lo = 2, .hi = 3}};
  }

  PlanInputs inputs_;
  Plan plan_;
};

TEST_F(PlanRatesTest, APlanDependsOnItsDevicesAndOnTheLinksBetweenItsStages) {
  EXPECT_THAT(PlannedRates(inputs_, plan_),
              ElementsAre(Pair(LinkKey("a", "b"), 200 * kMbit), Pair(LinkKey("b", "a"), 200 * kMbit), Pair(DiskKey("a"), 1),
                          Pair(DiskKey("b"), 1), Pair(ComputeKey("a"), 1), Pair(ComputeKey("b"), 1)));
}

TEST_F(PlanRatesTest, WhatIsMeasuredGoesBeforeTheFiles) {
  ApplyRates({{LinkKey("a", "b"), 20 * kMbit},
              {LinkKey("c", "a"), 10 * kMbit},
              {DiskKey("b"), 0.5},
              {ComputeKey("a"), 0.25},
              {DiskKey("gone"), 2}},
             inputs_);
  const LinkPoint slow = LinkBetween(inputs_.devices[0], inputs_.devices[1], inputs_.request.default_link);
  EXPECT_EQ(slow.bytes_per_second, 20 * kMbit);
  EXPECT_EQ(slow.latency_ms, 1) << "is not measured";
  EXPECT_EQ(LinkBetween(inputs_.devices[2], inputs_.devices[0], inputs_.request.default_link).bytes_per_second, 10 * kMbit);
  EXPECT_EQ(inputs_.devices[1].profile.disk[0].bytes_per_second, 1e8);
  EXPECT_EQ(inputs_.devices[1].profile.disk[0].latency_ms, 0.2);
  EXPECT_EQ(inputs_.devices[1].profile.flops, 1e10);
  const DeviceProfile& slower = inputs_.devices[0].profile;
  EXPECT_EQ(slower.read_bytes_per_second, 2.5e8);
  EXPECT_EQ(slower.flops, 2.5e9);
  EXPECT_EQ(slower.block_overhead_ms, 2);
  EXPECT_EQ(slower.models[0].points[0].ms, 16);
  EXPECT_EQ(slower.models[0].step_overhead_ms, 8);
  EXPECT_EQ(slower.disk[0].bytes_per_second, 2e8);
}

TEST_F(PlanRatesTest, ThePlanInUseIsComparedAsItIsNow) {
  const ClusterRates now = {{LinkKey("a", "b"), 20 * kMbit}, {DiskKey("b"), 0.5}, {ComputeKey("a"), 0.25}};
  ApplyRates(now, inputs_);
  const Plan is = AsItIsNow(inputs_, plan_, {}, now);
  EXPECT_DOUBLE_EQ(is.decode.tx_ms, 10) << "25 KB over the slowest link that it uses";
  EXPECT_EQ(is.devices[0].disk_mb_per_ms, 0.1);
  EXPECT_EQ(is.devices[0].disk_lat_ms, 0.2);
  EXPECT_EQ(is.devices[1].disk_mb_per_ms, 0.4);
  EXPECT_THAT((std::vector<double>{is.parts[0].decode_ms, is.parts[1].decode_ms, is.parts[2].decode_ms}), ElementsAre(40, 20, 120));
  // One that was made for half of the computing takes what it says where half is measured.
  const Plan made = AsItIsNow(inputs_, plan_, {{ComputeKey("a"), 0.5}}, now);
  EXPECT_THAT((std::vector<double>{made.parts[0].decode_ms, made.parts[1].decode_ms, made.parts[2].decode_ms}), ElementsAre(20, 20, 60));
}

// Stages on a and b; c only has experts of their layers.
TEST(HostRatesTest, LinksToHostsOfExpertsCountInBothDirections) {
  PlanInputs inputs{.spec = SmallExpertModel(), .devices = {Board("a", 200 * kMiB), Board("b", 200 * kMiB), Board("c", 200 * kMiB)}};
  inputs.request = {.context = 200,
                    .batches = {1},
                    .prompt_tokens = 100,
                    .chunks = {64},
                    .default_link = {.bytes_per_second = 125e6, .latency_ms = 0.1},
                    .ahead_places = 1,
                    .unit_places = 4,
                    .unit_shares = {{8, 3}, {4, 2}, {4, 2}}};
  const auto problem = MakePlanProblem(inputs.spec, inputs.devices, inputs.request);
  ASSERT_TRUE(problem.ok()) << problem.status();
  const int32_t end = problem->head.NumParts(), half = PartsOf(problem->head, {BlockKind::kAttention, 2}).first;
  PlanChoice choice{.stages = {.stages = {{0, 0, half}, {1, half, end}}}, .batch = 1};
  choice.first_token = FirstTokenPredictor(*problem->first_token).Predict(choice.stages);
  const auto plan = MakePlan(*problem, choice);
  ASSERT_TRUE(plan.ok()) << plan.status();
  inputs.request.unit_places = 0, inputs.request.ahead_places = 0, inputs.request.unit_shares.clear();  // as before a search

  const ClusterRates planned = PlannedRates(inputs, *plan);
  EXPECT_EQ(planned.at(LinkKey("a", "c")), 125e6);
  EXPECT_EQ(planned.at(LinkKey("c", "b")), 125e6);
  EXPECT_EQ(AsItIsNow(inputs, *plan, {}, planned), *plan) << "nothing has changed";

  // An answer has a result of 4 KB for each of two experts, or less.
  const ClusterRates now = {{LinkKey("c", "a"), 1e6}};
  ApplyRates(now, inputs);
  const Plan is = AsItIsNow(inputs, *plan, {}, now);
  for (int p = 0; p < plan->NumParts(); ++p) {
    if (!plan->parts[p].hosted()) continue;
    if (plan->stages[StageOf(*plan, p)].device == 0) {  // a, which waits for all hosts
      EXPECT_GT(is.parts[p].decode_ms, plan->parts[p].decode_ms + 0.5);
      EXPECT_GT(is.parts[p].prefill_ms, 3 * plan->parts[p].prefill_ms);
    } else {
      EXPECT_EQ(is.parts[p], plan->parts[p]);
    }
  }
}

}  // namespace
}  // namespace lime
