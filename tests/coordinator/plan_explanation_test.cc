#include "planner/plan_explanation.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/evaluation/evaluator.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Instance::Device LayeredDevice(const std::string& name, double mem_mb, double disk_mb_per_ms, double comp_ms, int blocks) {
  Instance::Device device;
  device.name = name;
  device.mem_mb = mem_mb;
  device.disk_mb_per_ms = disk_mb_per_ms;
  device.comp_ms.assign(blocks, comp_ms);
  return device;
}

// Whole layers of `mb` each.
Instance Layers(int layers, double mb, double kv_mb, std::vector<Instance::Device> devices) {
  Instance instance;
  instance.devices = std::move(devices);
  for (int l = 0; l < layers; ++l) instance.blocks.push_back({.kind = Instance::Kind::kLayer, .layer = l, .mb = mb, .kv_mb = kv_mb});
  instance.net = {.tx_ms = 1, .lat_ms = 1};
  return instance;
}

struct Explained {
  FoundPlan found;
  std::vector<DeviceExplanation> devices;
};

Explained Explain(const Instance& instance) {
  Explained out;
  out.found = PlanBy(Strategy::kLime, instance, {.time_limit_ms = 200});
  EXPECT_TRUE(out.found.feasible);
  out.devices = ExplainDevices(instance, out.found.plan, out.found.ms_per_step, {.total_ms = 400});
  return out;
}

TEST(PlanExplanationTest, ADeviceThatOnlyCostsIsLeftOutAndItsPriceIsNamed) {
  // Alone, `fast` takes 8 x 1 ms. A layer on `slow` takes 5 ms and a hop there and one back: 7 + 5
  // + 2 + 2 at the end of the pipeline, where the way back is the latency alone: 7 + 5 + 2 + 1 =
  // 15.
  const Explained e = Explain(Layers(8, 100, 0, {LayeredDevice("fast", 1000, 0, 1, 8), LayeredDevice("slow", 1000, 0, 5, 8)}));
  EXPECT_DOUBLE_EQ(e.found.ms_per_step, 8);
  EXPECT_TRUE(e.devices[0].used);
  EXPECT_THAT(e.devices[0].why, StartsWith("everything fits on it"));
  EXPECT_FALSE(e.devices[1].used);
  EXPECT_DOUBLE_EQ(e.devices[1].otherwise_ms.value(), 15);
  EXPECT_EQ(
      e.devices[1].why,
      "with a layer on it the time would be 15.00 ms per token: a layer takes 5.00 ms there and 1.00 ms on fast, and a hop takes 2.00 ms");
  EXPECT_DOUBLE_EQ(e.devices[0].alone_ms.value(), 8);
  EXPECT_DOUBLE_EQ(e.devices[1].alone_ms.value(), 40);
}

TEST(PlanExplanationTest, ADeviceWithoutWhichNothingFitsSaysSo) {
  const Explained e = Explain(Layers(8, 100, 0, {LayeredDevice("a", 500, 0, 1, 8), LayeredDevice("b", 500, 0, 1, 8)}));
  for (const DeviceExplanation& device : e.devices) {
    EXPECT_TRUE(device.used);
    EXPECT_EQ(device.why, "without it no plan fits");
    EXPECT_FALSE(device.otherwise_ms.has_value());
    EXPECT_FALSE(device.alone_ms.has_value());
  }
}

TEST(PlanExplanationTest, ADeviceThatHelpsSaysHowMuch) {
  // Without `b`, `a` streams: 4 layers resident, one slot for the other four, 100 ms each and 1 ms
  // of computing while the slot is taken.
  const Explained e = Explain(Layers(8, 100, 0, {LayeredDevice("a", 500, 1, 1, 8), LayeredDevice("b", 500, 1, 1, 8)}));
  EXPECT_LT(e.found.ms_per_step, 20);
  EXPECT_NEAR(e.devices[1].otherwise_ms.value(), 404, 1);
  EXPECT_THAT(e.devices[1].why, HasSubstr("without it 404 ms per token (+"));
}

TEST(PlanExplanationTest, OneMoreGibIsWorthTheLayersItHolds) {
  // 5 of 10 layers of 1,000 MB resident, the others through one slot: 5 x 1,001 ms. A GiB holds one
  // more: 4 x 1,001.
  const Explained e = Explain(Layers(10, 1000, 0, {LayeredDevice("a", 6000, 1, 1, 10)}));
  EXPECT_NEAR(e.found.ms_per_step, 5005, 1);
  EXPECT_NEAR(e.devices[0].one_more_gib_ms.value(), 1001, 1);
}

TEST(PlanExplanationTest, ADeviceTooSmallForALayerSaysSo) {
  const Explained e = Explain(Layers(8, 100, 0, {LayeredDevice("a", 1000, 0, 1, 8), LayeredDevice("tiny", 50, 1, 1, 8)}));
  EXPECT_EQ(e.devices[1].why, "its memory, 47.68 MiB besides its own needs, does not hold a layer");
}

TEST(PlanExplanationTest, WithoutTimeNothingIsSearched) {
  const Instance instance = Layers(8, 100, 0, {LayeredDevice("a", 500, 1, 1, 8), LayeredDevice("b", 500, 1, 1, 8)});
  const FoundPlan found = PlanBy(Strategy::kLime, instance, {.time_limit_ms = 200});
  for (const DeviceExplanation& device : ExplainDevices(instance, found.plan, found.ms_per_step, {.total_ms = 0})) {
    EXPECT_EQ(device.why, "used; the time limit is too short to plan without it");
    EXPECT_FALSE(device.one_more_gib_ms.has_value());
  }
}

TEST(PlanExplanationTest, ExplainingIsDeterministic) {
  const Instance instance =
      Layers(8, 100, 3, {LayeredDevice("a", 400, 1, 1, 12), LayeredDevice("b", 200, 2, 2, 12), LayeredDevice("c", 100, 1, 3, 12)});
  const Explained once = Explain(instance), again = Explain(instance);
  for (size_t d = 0; d < once.devices.size(); ++d) {
    EXPECT_EQ(once.devices[d].why, again.devices[d].why);
    EXPECT_EQ(once.devices[d].one_more_gib_ms, again.devices[d].one_more_gib_ms);
  }
}

// 100 MB of weights and 1,000 MB of KV on 500 MB: 600 MB are missing, 9 steps of 64 MiB; or 400 of
// the 1,000 tokens, 360 in steps of 64.
TEST(PlanExplanationTest, WhatIsMissingIsNamedWithWhatWouldMakeItFit) {
  const Instance instance = Layers(1, 100, 1000, {LayeredDevice("small", 400, 0, 1, 1), LayeredDevice("a", 500, 0, 1, 1)});
  const FoundPlan none = PlanBy(Strategy::kLime, instance, {.time_limit_ms = 200});
  ASSERT_FALSE(none.feasible);
  const std::string text = ExplainInfeasible(instance, none.reason, {.total_ms = 400, .context = 1000});
  EXPECT_THAT(text, HasSubstr("no plan fits: weights need 95.37 MiB, and 953.67 MiB more must stay in memory"));
  EXPECT_THAT(text, HasSubstr("a has 476.84 MiB and no disk to stream from"));
  EXPECT_THAT(text, HasSubstr("it would fit with 576.00 MiB more on a, or with a context of 360 tokens"));
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(PlanExplanationTest, AShorterContextFreesNoState) {
  Instance instance = Layers(1, 100, 1000, {LayeredDevice("small", 400, 0, 1, 1), LayeredDevice("a", 500, 0, 1, 1)});
  instance.blocks.front().state_mb = 900;
  const FoundPlan none = PlanBy(Strategy::kLime, instance, {.time_limit_ms = 200});
  const std::string text = ExplainInfeasible(instance, none.reason, {.total_ms = 400, .context = 1000});
  EXPECT_THAT(text, HasSubstr("(KV of 1000 tokens, norms, states)"));
  EXPECT_THAT(text, ::testing::EndsWith("it would fit with 576.00 MiB more on a")) << "no context is short enough";
}

// An ended search finds no remedy, so the text ends with the reason.
TEST(PlanExplanationTest, TheReasonDoesNotRepeatThatNoPlanFits) {
  const Instance instance = Layers(1, 100, 1000, {LayeredDevice("small", 400, 0, 1, 1), LayeredDevice("a", 500, 0, 1, 1)});
  const FoundPlan none = PlanBy(Strategy::kLime, instance, {.time_limit_ms = 200});
  ASSERT_THAT(none.reason, StartsWith("no plan fits: "));
  ExplainOptions options{.total_ms = 400, .context = 1000};
  options.search.elapsed_ms = [] { return std::numeric_limits<double>::infinity(); };
  const std::string text = ExplainInfeasible(instance, none.reason, options);
  EXPECT_THAT(text, HasSubstr("; the devices have 900 MB together"));
  EXPECT_EQ(text.find("no plan fits"), text.rfind("no plan fits"));
}

TEST(PlanExplanationTest, OtherStrategiesPointToTheOneThatStreams) {
  const Instance instance = Layers(8, 100, 0, {LayeredDevice("a", 300, 1, 1, 8), LayeredDevice("b", 300, 1, 1, 8)});
  const FoundPlan none = PlanBy(Strategy::kPp, instance, {});
  ASSERT_FALSE(none.feasible);
  EXPECT_THAT(ExplainInfeasible(instance, none.reason, {.strategy = Strategy::kPp, .total_ms = 400}),
              HasSubstr("--strategy lime streams weights that do not fit"));
}

}  // namespace
}  // namespace lime
