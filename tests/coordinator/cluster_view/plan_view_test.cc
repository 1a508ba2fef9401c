#include "coordinator/cluster_view/plan_view.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/plan_blocks.h"
#include "planner/sim/simulator.h"
#include "tests/coordinator/cluster_view/small_view.h"

namespace lime {
namespace {

using ::testing::ElementsAre;

DeviceFacts Described(const Plan& plan, const std::string& name) {
  DeviceFacts device{.name = name};
  DescribeByPlan(plan, device);
  return device;
}

TEST(PlanViewTest, MemoryByKindIsTheBudgetWithoutTheMargin) {
  const Plan plan = SmallServedPlan();
  for (const PlanDevice& by_plan : plan.devices) {
    const DeviceFacts device = Described(plan, by_plan.name);
    const MemoryFacts& memory = device.memory;
    EXPECT_EQ(memory.weights + memory.kv + memory.ring + memory.activations + memory.runtime + by_plan.memory.margin, device.budget);
    EXPECT_EQ(device.numerics_id, "x86-f32-1");
  }
}

TEST(PlanViewTest, StreamedBlocksHaveTheBytesThatAStepReads) {
  const Plan plan = SmallServedPlan();
  EXPECT_TRUE(Described(plan, "a").streamed.empty());
  EXPECT_EQ(Described(plan, "a").planned_disk_bytes_per_second, std::nullopt);
  const DeviceFacts device = Described(plan, "b");
  Bytes streamed = 0;
  for (const PlanPart& part : plan.parts) streamed += part.streamed ? part.bytes : 0;
  ASSERT_EQ(device.streamed.size(), 2u);
  EXPECT_EQ(device.streamed[0].name, "mlp 1 [1-2/4]");
  EXPECT_EQ(device.streamed[0].bytes + device.streamed[1].bytes, streamed);
  EXPECT_NEAR(*device.planned_disk_bytes_per_second, static_cast<double>(streamed) / plan.predicted.ms_per_step * 1000, 1);
}

TEST(PlanViewTest, ExpertsOnDemandHaveTheirExpectedShare) {
  Plan plan = SmallServedPlan();
  EXPECT_EQ(Described(plan, "b").experts, std::nullopt);
  const int32_t device = DeviceNamed(plan, "b");
  PlanPart& part = plan.parts[static_cast<size_t>(PartsOn(plan, device).back())];
  part = {.block = {BlockKind::kExperts, 0}, .bytes = 2 * kMiB, .unit_bytes = kMiB, .places = 1, .hit_share = 0.75, .chosen_units = 1};
  part.rows = {{TensorRole::kUp, 0, 8, 0}, {TensorRole::kDown, 0, 8, 0}, {TensorRole::kUp, 0, 8, 1}, {TensorRole::kDown, 0, 8, 1}};
  EXPECT_EQ(Described(plan, "b").experts, (ExpertsFacts{.kept = 1, .of = 2, .expected_hit_share = 0.75}));
  EXPECT_EQ(Described(plan, "a").experts, std::nullopt);
}

TEST(PlanViewTest, ADeviceOutsideThePlanHasNothingOfIt) {
  EXPECT_EQ(Described(SmallServedPlan(), "d"), DeviceFacts{.name = "d"});
}

TEST(PlanViewTest, BlocksOfAllDevicesAreThoseOfTheModel) {
  const Plan plan = SmallServedPlan();
  int64_t blocks = 0;
  for (const PlanDevice& device : plan.devices) blocks += Described(plan, device.name).blocks;
  EXPECT_EQ(blocks, 2 * 4 + 2) << "4 layers, embedding, head";
}

TEST(PlanViewTest, EachLinkOfThePipelineIsThereOnce) {
  std::vector<std::string> links;
  for (const LinkFacts& link : LinksOf(SmallServedPlan())) links.push_back(absl::StrCat(link.from, " ", link.to));
  EXPECT_THAT(links, ElementsAre("a b", "b a", "b c", "c a"));
}

TEST(PlanViewTest, APredictedStepTakesThePredictedTime) {
  const Plan plan = SmallServedPlan();
  const std::vector<SpanFacts> spans = PredictedStep(plan);
  ASSERT_FALSE(spans.empty());
  double end_ms = 0;
  std::set<std::string> kinds;
  for (const SpanFacts& span : spans) {
    EXPECT_GE(span.begin_ms, 0);
    EXPECT_GT(span.end_ms, span.begin_ms);
    end_ms = std::max(end_ms, span.end_ms);
    kinds.insert(span.kind);
  }
  EXPECT_NEAR(end_ms, plan.predicted.ms_per_step, 0.01 * plan.predicted.ms_per_step);
  EXPECT_EQ(kinds, (std::set<std::string>{"compute", "load", "send", "wait"}));
}

TEST(PlanViewTest, AStepAfterARestBeginsWithItsOwnWork) {
  Timeline timeline{.devices = {"a"}, .parts = {"mlp 0"}, .spans = {}};
  const auto add = [&](int32_t step, double begin_ms, double end_ms) {
    timeline.spans.push_back({.begin_ms = begin_ms, .end_ms = end_ms, .step = step, .part = 0});
  };
  add(0, 0, 10), add(1, 12, 20), add(2, 5000, 5010);
  EXPECT_THAT(SpansOfStep(timeline, 1), ElementsAre(SpanFacts{"a", "compute", "mlp 0", 2, 10}));
  EXPECT_THAT(SpansOfStep(timeline, 2), ElementsAre(SpanFacts{"a", "compute", "mlp 0", 0, 10}));
  EXPECT_TRUE(SpansOfStep(timeline, 3).empty());
}

TEST(PlanViewTest, ManySpansBecomeFewWithTheSameBeginAndEnd) {
  Timeline timeline{.devices = {"a"}, .parts = {}, .spans = {}};
  for (int32_t part = 0; part < 1000; ++part) {
    timeline.parts.push_back(absl::StrCat("part ", part));
    timeline.spans.push_back({.begin_ms = part + 0.25, .end_ms = part + 1.0, .step = 0, .part = part});
  }
  const std::vector<SpanFacts> spans = SpansOfStep(timeline, 0);
  EXPECT_LE(spans.size(), kMostSpans);
  EXPECT_EQ(spans.front(), (SpanFacts{"a", "compute", "part 0 to part 3", 0, 3.75}));
  EXPECT_EQ(spans.back().end_ms, 999.75);
}

}  // namespace
}  // namespace lime
