// What must hold of predictions and plans whatever the numbers: more never costs, names do not
// matter, nonsense is answered in a sentence.
#include <cmath>
#include <numeric>

#include "gtest/gtest.h"
#include "planner/evaluation/evaluator.h"
#include "planner/evaluation/lower_bound.h"
#include "planner/search/half_counts.h"
#include "planner/search/plan_search.h"
#include "planner/solve.h"
#include "planner/strategies.h"
#include "tests/cases.h"
#include "tests/planner/random_plans.h"
#include "tests/planner/schedule_oracle.h"

namespace lime {
namespace {

struct Better {
  const char* what;
  Instance instance;
};

// One thing better at a time, for one device or the network.
std::vector<Better> BetterInstances(const Instance& instance, RandomPlans& random) {
  const int d = random.Int(0, instance.NumDevices() - 1);
  std::vector<Better> out = {
      {"a faster device", instance}, {"a faster disk", instance}, {"a faster network", instance}, {"less latency", instance}};
  for (double& ms : out[0].instance.devices[d].comp_ms) ms *= 0.5;
  if (std::optional<double>& ms = out[0].instance.devices[d].embed_rows_ms) *ms *= 0.5;
  out[1].instance.devices[d].disk_mb_per_ms *= 2;
  out[1].instance.devices[d].disk_lat_ms *= 0.5;
  out[2].instance.net.tx_ms *= 0.5;
  out[3].instance.net.lat_ms *= 0.5;
  return out;
}

Instance WithMoreMemory(Instance instance, RandomPlans& random) {
  instance.devices[random.Int(0, instance.NumDevices() - 1)].mem_mb *= 1.5;
  return instance;
}

// When each step ends never gets later, so neither does any of them: times of a schedule are sums
// and maxima of what is given. The rate of the settled steps is a difference of two ends, which a
// faster start may raise by what the steps before saved.
TEST(PropertiesTest, NoStepOfAFixedPlanEndsLaterWithMore) {
  int feasible = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(12, 3, 3);
    const StagePlan plan = random.MakePlan(instance);
    random.FitMemory(plan, instance);
    Evaluator before(instance);
    if (!std::isfinite(before.MsPerStep(plan))) continue;
    ++feasible;
    std::vector<Better> better = BetterInstances(instance, random);
    better.push_back({"more memory", WithMoreMemory(instance, random)});
    for (const Better& now : better) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " " << now.what);
      Evaluator after(now.instance);
      ASSERT_TRUE(std::isfinite(after.MsPerStep(plan)));
      for (int t = 0; t < Evaluator::kSteps; ++t) {
        ASSERT_LE(after.step_ends_ms()[t], before.step_ends_ms()[t] * (1 + 1e-12) + 1e-9) << "step " << t;
      }
    }
  }
  EXPECT_GT(feasible, 1000);
}

// The search, begun also at the plan from before, never ends worse than that plan is now; and by
// its steady rate that is at most what it was.
TEST(PropertiesTest, TheSearchBegunAtThePlanFromBeforeIsNotWorseWithMore) {
  const int cases = Cases(30, 120);
  int feasible = 0;
  for (int seed = 0; seed < cases; ++seed) {
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(16, 4, 2);
    const StagePlan tight = random.MakePlan(instance);
    random.FitMemory(tight, instance);
    const Granularity granularity = random.Chance(50) ? Granularity::kModelBlock : Granularity::kBlock;
    const FoundPlan before = SearchPlan(instance, {.granularity = granularity, .time_limit_ms = 10, .exhaustive = false});
    if (!before.feasible) continue;
    ++feasible;
    std::vector<Better> better = BetterInstances(instance, random);
    better.push_back({"more memory", WithMoreMemory(instance, random)});
    for (const Better& now : better) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " " << now.what);
      const FoundPlan after =
          SearchPlan(now.instance, {.granularity = granularity, .time_limit_ms = 10, .exhaustive = false, .seeds = {before.plan}});
      ASSERT_TRUE(after.feasible);
      EXPECT_LE(after.ms_per_step, Evaluator(now.instance).MsPerStep(before.plan));
      EXPECT_LE(after.ms_per_step, before.ms_per_step * (1 + 1e-9));
    }
  }
  EXPECT_GT(feasible, cases * 2 / 3);
}

TEST(PropertiesTest, TheBestOfAllPlansIsNotWorseWithMore) {
  const int cases = Cases(12, 60);
  int feasible = 0;
  for (int seed = 0; seed < cases; ++seed) {
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(6, 3, 2);
    const StagePlan tight = random.MakePlan(instance);
    random.FitMemory(tight, instance);
    const FoundPlan before = SearchPlan(instance, {});
    if (!before.feasible) continue;
    ++feasible;
    std::vector<Better> better = BetterInstances(instance, random);
    better.push_back({"more memory", WithMoreMemory(instance, random)});
    for (const Better& now : better) {
      const FoundPlan after = SearchPlan(now.instance, {});
      ASSERT_TRUE(before.optimal && after.optimal && after.feasible);
      EXPECT_LE(after.ms_per_step, before.ms_per_step * (1 + 1e-9)) << "seed " << seed << " " << now.what;
    }
  }
  EXPECT_GT(feasible, cases * 2 / 3);
}

TEST(PropertiesTest, FoundPlansNeverHoldMoreThanTheirBudget) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(14, 3, 3);
    const StagePlan tight = random.MakePlan(instance);
    random.FitMemory(tight, instance);
    const FoundPlan found = SearchPlan(instance, {.time_limit_ms = 10, .exhaustive = false});
    if (!found.feasible) continue;
    const OracleAnswer oracle = AskOracle(instance, found.plan);
    ASSERT_TRUE(oracle.feasible);
    EXPECT_NEAR(oracle.ms_per_step, found.ms_per_step, 1e-9 * (1 + found.ms_per_step));
    for (int d = 0; d < instance.NumDevices(); ++d) {
      EXPECT_LE(oracle.used_mb[d] + oracle.most_held_mb[d], instance.devices[d].mem_mb + 1e-5) << "seed " << seed;
    }
  }
}

// Two devices that are alike change places everywhere in a plan: the same time, to the last bit.
TEST(PropertiesTest, IdenticalDevicesAreInterchangeable) {
  int feasible = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(14, 4, 3);
    if (instance.NumDevices() < 2) continue;
    const int last = instance.NumDevices() - 1;
    const StagePlan plan = random.MakePlan(instance);
    random.FitMemory(plan, instance);
    instance.devices[0].mem_mb = std::max(instance.devices[0].mem_mb, instance.devices[last].mem_mb);
    instance.devices[last] = instance.devices[0];
    StagePlan swapped = plan;
    for (Stage& stage : swapped.stages) stage.device = stage.device == 0 ? last : stage.device == last ? 0 : stage.device;
    if (!plan.Validate(instance).ok()) continue;  // read rows on the device that was replaced
    Evaluator evaluator(instance);
    const double ms = evaluator.MsPerStep(plan);
    EXPECT_EQ(evaluator.MsPerStep(swapped), ms) << "seed " << seed;
    feasible += std::isfinite(ms) ? 1 : 0;
  }
  EXPECT_GT(feasible, 200);
}

TEST(PropertiesTest, TheOrderInWhichDevicesAreNamedDoesNotMatter) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(6, 3, 2);
    instance.devices.back() = instance.devices.front();
    Instance reversed = instance;
    std::reverse(reversed.devices.begin(), reversed.devices.end());
    const FoundPlan found = SearchPlan(instance, {}), other = SearchPlan(reversed, {});
    ASSERT_EQ(found.feasible, other.feasible);
    if (!found.feasible) continue;
    EXPECT_NEAR(found.ms_per_step, other.ms_per_step, 1e-9 * (1 + found.ms_per_step)) << "seed " << seed;
    EXPECT_NEAR(LowerBoundMs(instance), LowerBoundMs(reversed), 1e-6 * (1 + LowerBoundMs(instance)));
  }
}

Instance Uniform(int layers, int devices, double mem_mb) {
  Instance instance;
  for (int i = 0; i < layers; ++i) {
    instance.blocks.push_back({.kind = Instance::Kind::kAttention, .layer = i, .mb = 100, .kv_mb = 2});
    instance.blocks.push_back({.kind = Instance::Kind::kMlp, .layer = i, .mb = 300});
  }
  for (int d = 0; d < devices; ++d) {
    instance.devices.push_back(
        {.mem_mb = mem_mb, .disk_mb_per_ms = 2, .disk_lat_ms = 0.1, .comp_ms = std::vector<double>(2 * layers, 1.5)});
  }
  instance.net = {.tx_ms = 1, .lat_ms = 0.3};
  return instance;
}

// Six layers on two devices of 1130 MB. Three MLP halves each leave 230: two attention halves of
// 102 each. Where 505 ms are allowed, ten attention halves of 100 MB come from the disk in 50.1 ms
// each, through a pool of 200: 30 MB are left, for the KV of as many. What is too much is taken off
// the first of two that are alike.
TEST(HalfCountsTest, AreWhatFitsBesideWhatTheDiskReads) {
  const Instance instance = Uniform(6, 2, 1130);
  const std::vector<int32_t> unit_begins = UnitBegins(instance, Granularity::kBlock), order = {0, 1};
  const std::vector<double> usable = {1, 1};
  const std::vector<StreamingStyle> styles(2, StreamingStyle{.largest_mb = 100, .pool_mb = 200});
  CountProgram program(instance, unit_begins);
  EXPECT_TRUE(program.Share({.limit_ms = 49, .usable = usable, .styles = styles, .order = order}).empty());
  const std::vector<HalfCounts> counts = program.Share({.limit_ms = 505, .usable = usable, .styles = styles, .order = order});
  EXPECT_EQ(counts, (std::vector<HalfCounts>{{0, 3}, {6, 3}}));
}

TEST(HalfCountsTest, AnArrangementHasThemAll) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomPlans random(seed);
    const int layers = random.Int(1, 30), devices = random.Int(1, 5);
    const Instance instance = Uniform(layers, devices, 1000);
    const std::vector<int32_t> unit_begins = UnitBegins(instance, Granularity::kBlock);
    std::vector<HalfCounts> counts(devices);
    for (int i = 0; i < 2 * layers; ++i) ++counts[random.Int(0, devices - 1)][i % 2];
    std::vector<int32_t> order(devices);
    std::iota(order.begin(), order.end(), 0);
    const Assignment plan = CountProgram(instance, unit_begins).Arrange(counts, order, random.Int(1, 8));
    for (int b = 0; b < instance.NumBlocks(); ++b) --counts[plan.device[b]][b % 2];
    EXPECT_EQ(counts, std::vector<HalfCounts>(devices)) << "seed " << seed;
  }
}

TEST(DegenerateTest, OneDeviceThatFitsAllRunsItAllWithoutStreaming) {
  Instance instance = Uniform(20, 3, 2000);
  instance.devices[1].mem_mb = 20 * 402;
  const FoundPlan found = PlanBy(Strategy::kLime, instance, {.time_limit_ms = 100});
  EXPECT_EQ(found.plan.stages, (std::vector<Stage>{{1, 0, 40}}));
  EXPECT_TRUE(found.plan.streamed.empty());
  EXPECT_DOUBLE_EQ(found.ms_per_step, 60);
}

TEST(DegenerateTest, DevicesThatFitAllTogetherReadNothing) {
  for (const double share : {0.55, 0.62, 0.75, 0.9}) {
    const FoundPlan found = PlanBy(Strategy::kLime, Uniform(20, 2, std::ceil(share * 20) * 402), {.time_limit_ms = 100});
    EXPECT_EQ(found.plan.stages.size(), 2) << share;
    EXPECT_TRUE(found.plan.streamed.empty()) << share << ": " << found.plan.streamed.size();
  }
}

TEST(DegenerateTest, MoreDevicesThanLayers) {
  const FoundPlan found = PlanBy(Strategy::kLime, Uniform(3, 12, 410), {.time_limit_ms = 100});
  ASSERT_TRUE(found.feasible);
  EXPECT_LE(found.ms_per_step, 9 + 2 * 1.3 + 0.3 + 1e-9);
}

TEST(DegenerateTest, ADeviceTooSmallForOneBlockIsLeftOut) {
  Instance instance = Uniform(10, 2, 10 * 402);
  instance.devices[0].mem_mb = 50;
  const FoundPlan found = PlanBy(Strategy::kLime, instance, {.time_limit_ms = 100});
  EXPECT_EQ(found.plan.stages, (std::vector<Stage>{{1, 0, 20}}));
}

TEST(DegenerateTest, AHeadLargerThanEveryDeviceIsInfeasibleAndInPiecesItStreams) {
  Instance instance = Uniform(2, 2, 1000);
  instance.blocks.push_back({.kind = Instance::Kind::kHead, .layer = 2, .mb = 1200});
  for (Instance::Device& device : instance.devices) device.comp_ms.push_back(4);
  const FoundPlan whole = PlanBy(Strategy::kLime, instance, {.time_limit_ms = 50});
  EXPECT_FALSE(whole.feasible);
  EXPECT_NE(whole.reason, "");
  instance.blocks.pop_back();
  for (int piece = 0; piece < 20; ++piece) instance.blocks.push_back({.kind = Instance::Kind::kHead, .layer = 2, .mb = 60});
  for (Instance::Device& device : instance.devices) {
    device.comp_ms.pop_back();
    device.comp_ms.insert(device.comp_ms.end(), 20, 0.2);
  }
  EXPECT_TRUE(PlanBy(Strategy::kLime, instance, {.time_limit_ms = 50}).feasible);
}

// No bandwidth: messages never arrive, so one device does it all, streaming, though there are
// three.
TEST(DegenerateTest, ANetworkThatCarriesNothingIsNotUsed) {
  Instance instance = Uniform(10, 3, 1000);
  instance.net.tx_ms = kMaxPlanNumber;
  const FoundPlan found = PlanBy(Strategy::kLime, instance, {.time_limit_ms = 50});
  ASSERT_TRUE(found.feasible);
  EXPECT_EQ(found.plan.stages.size(), 1u);
}

TEST(DegenerateTest, ADiskThatReadsNothingStreamsNothing) {
  Instance instance = Uniform(10, 2, 1500);
  instance.devices[0].disk_mb_per_ms = 0;
  const FoundPlan found = PlanBy(Strategy::kLime, instance, {.time_limit_ms = 50});
  ASSERT_TRUE(found.feasible);
  const Assignment plan = ToAssignment(found.plan, instance.NumBlocks());
  for (int b = 0; b < instance.NumBlocks(); ++b) EXPECT_FALSE(plan.streamed[b] && plan.device[b] == 0);
  instance.devices[1].disk_mb_per_ms = 0;
  EXPECT_FALSE(PlanBy(Strategy::kLime, instance, {.time_limit_ms = 50}).feasible);
}

TEST(DegenerateTest, TenMegabytesOfProblemEndInASentenceOrAPlan) {
  std::string blocks = "[", times = "[";
  const int n = 60'000;
  for (int b = 0; b < n; ++b) {
    blocks += std::string(b > 0 ? "," : "") + R"({"kind":"L","layer":)" + std::to_string(b) +
              R"(,"mb":100,"kv_mb":1,"a_field_to_ignore":"0123456789012345678901234567890123456789012345678901234567890123456789"})";
    times += b > 0 ? ",1" : "1";
  }
  const std::string problem = R"({"kind":"optimize","time_limit_ms":50,"instance":{"net":{"tx_ms":1,"lat_ms":1},"blocks":)" + blocks +
                              R"(],"devices":[{"mem_mb":1e6,"disk_mb_per_ms":1,"comp_ms":)" + times +
                              R"(]},{"mem_mb":2e6,"disk_mb_per_ms":1,"comp_ms":)" + times + "]}]}}";
  EXPECT_GT(problem.size(), 8u << 20);
  const absl::StatusOr<std::string> answer = Solve(problem, {.max_work = 1e7});
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->substr(0, 16), "{\"feasible\":true");
}

}  // namespace
}  // namespace lime
