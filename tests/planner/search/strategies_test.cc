// The baselines as plans, and that the search is never worse than any of them.
#include "planner/strategies.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/batches.h"
#include "planner/evaluation/evaluator.h"
#include "planner/evaluation/lower_bound.h"
#include "planner/plan/instance/plan_json.h"
#include "tests/cases.h"
#include "tests/planner/random_plans.h"
#include "tests/planner/search/paper_problems.h"
#include "tests/skips.h"

namespace lime {
namespace {

// `layers` of an attention half of 10 MB and an MLP half of 30 MB with 1 MB of KV; devices compute
// a layer in 4 ms and read 10 MB/ms.
Instance Layers(int layers, const std::vector<double>& mem_mb) {
  Instance instance;
  for (int i = 0; i < layers; ++i) {
    instance.blocks.push_back({.kind = Instance::Kind::kAttention, .layer = i, .mb = 10, .kv_mb = 1});
    instance.blocks.push_back({.kind = Instance::Kind::kMlp, .layer = i, .mb = 30});
  }
  for (const double mb : mem_mb) {
    Instance::Device device = {.mem_mb = mb, .disk_mb_per_ms = 10};
    for (int b = 0; b < 2 * layers; ++b) device.comp_ms.push_back(b % 2 == 0 ? 1 : 3);
    instance.devices.push_back(std::move(device));
  }
  instance.net = {.tx_ms = 0.5, .lat_ms = 0.5};
  return instance;
}

// Shares by memory: 1 and 3 of 4 layers. 16 ms of computing, a hop of 1 and 0.5 back.
TEST(BaselinesTest, PipelineSharesByMemory) {
  const FoundPlan found = PlanBy(Strategy::kPp, Layers(4, {50, 150}), {});
  EXPECT_EQ(found.plan.stages, (std::vector<Stage>{{0, 0, 2}, {1, 2, 8}}));
  EXPECT_DOUBLE_EQ(found.ms_per_step, 17.5);
  const FoundPlan none = PlanBy(Strategy::kPp, Layers(4, {40, 120}), {});
  EXPECT_FALSE(none.feasible);
  EXPECT_EQ(none.reason.substr(0, 14), "out of memory:");
}

// 2 and 2 layers, 82 MB each in 80: a slot of one layer hosts both layers of a device.
TEST(BaselinesTest, PipelineWithOffloadingStreamsWholeLayersThroughASlot) {
  const FoundPlan found = PlanBy(Strategy::kPpOffload, Layers(4, {80, 80}), {});
  ASSERT_TRUE(found.feasible) << found.reason;
  EXPECT_EQ(found.plan.streamed.size(), 8u);
  EXPECT_DOUBLE_EQ(found.ms_per_step, Evaluator(Layers(4, {80, 80})).MsPerStep(found.plan));
}

// Two micro-batches of a device that streams a layer of 4 ms beside a resident one: 2 x (4 + 4) ms
// of computing and loading in turns where the pool holds one block of 30 and one of 10, never less
// than the 2 x 4 ms that its disk takes.
TEST(BaselinesTest, PipelineWithOffloadingReloadsForEveryMicroBatch) {
  Instance instance = Layers(2, {82});
  instance.devices[0].mem_mb = 81;
  instance.microbatches = 2;
  const FoundPlan found = PlanBy(Strategy::kPpOffload, instance, {});
  ASSERT_TRUE(found.feasible) << found.reason;
  EXPECT_EQ(found.plan.streamed.size(), 4u);  // a slot of 40 MB, and what is beside it holds no second layer
  EXPECT_GE(found.ms_per_step, 2 * 8);
  instance.microbatches = 1;
  EXPECT_DOUBLE_EQ(found.ms_per_step, 2 * PlanBy(Strategy::kPpOffload, instance, {}).ms_per_step);
}

// The second device is slower: it gets the one layer that the first cannot hold. With several
// micro-batches both compute half.
TEST(BaselinesTest, EdgeShardChoosesTheFastestDevices) {
  Instance instance = Layers(4, {125, 200});
  for (double& ms : instance.devices[1].comp_ms) ms *= 2;
  FoundPlan found = PlanBy(Strategy::kEdgeShard, instance, {});
  ASSERT_TRUE(found.feasible) << found.reason;
  EXPECT_DOUBLE_EQ(found.ms_per_step, 3 * 4 + 8 + 1.5);
  instance.devices[1].comp_ms = instance.devices[0].comp_ms;
  instance.microbatches = 4;
  found = PlanBy(Strategy::kEdgeShard, instance, {});
  EXPECT_EQ(found.plan.stages[0].hi, 4);
  instance.devices[0].mem_mb = instance.devices[1].mem_mb = 80;
  EXPECT_FALSE(PlanBy(Strategy::kEdgeShard, instance, {}).feasible);
}

// Five requests at once, derived from one, are those of the burst's own problem.
TEST(PaperProblemsTest, BurstsAreThoseOfTheirOwnProblems) {
  for (const std::string name : {"S1", "S2", "S3"}) {
    const Instance burst = PaperProblem(name + "b"), derived = WithSequences(PaperProblem(name), 5);
    EXPECT_NEAR(derived.net.tx_ms_by_batch.at(5), burst.net.tx_ms, 1e-5);
    for (int b = 0; b < derived.NumBlocks(); ++b) {
      EXPECT_NEAR(derived.blocks[b].kv_mb, burst.blocks[b].kv_mb, 1e-5);
      for (int d = 0; d < derived.NumDevices(); ++d) {
        EXPECT_NEAR(derived.devices[d].comp_ms_by_batch.at(5)[b], burst.devices[d].comp_ms[b], 1e-5);
      }
    }
  }
}

void ExpectSame(const Instance& a, const Instance& b) {
  EXPECT_EQ(a.embed_mb, b.embed_mb);
  EXPECT_EQ(a.net.tx_ms, b.net.tx_ms);
  EXPECT_EQ(a.net.lat_ms, b.net.lat_ms);
  EXPECT_EQ(a.microbatches, b.microbatches);
  ASSERT_EQ(a.NumBlocks(), b.NumBlocks());
  for (int i = 0; i < a.NumBlocks(); ++i) {
    EXPECT_EQ(a.blocks[i].kind, b.blocks[i].kind);
    EXPECT_EQ(a.blocks[i].layer, b.blocks[i].layer);
    EXPECT_EQ(a.blocks[i].mb, b.blocks[i].mb);
    EXPECT_EQ(a.blocks[i].kv_mb, b.blocks[i].kv_mb);
  }
  ASSERT_EQ(a.NumDevices(), b.NumDevices());
  for (int d = 0; d < a.NumDevices(); ++d) {
    EXPECT_EQ(a.devices[d].name, b.devices[d].name);
    EXPECT_EQ(a.devices[d].mem_mb, b.devices[d].mem_mb);
    EXPECT_EQ(a.devices[d].disk_mb_per_ms, b.devices[d].disk_mb_per_ms);
    EXPECT_EQ(a.devices[d].disk_lat_ms, b.devices[d].disk_lat_ms);
    EXPECT_EQ(a.devices[d].comp_ms, b.devices[d].comp_ms);
  }
}

// The files whose best known plans the tests below cite.
TEST(PaperProblemsTest, TheyAreThoseOfTheFiles) {
  LIME_SKIP_WITHOUT_SHARED(SharedDir() / "planner");
  for (const std::string name : kPaperProblems) {
    SCOPED_TRACE(name);
    const absl::StatusOr<Instance> file = ReadProblem(SharedDir() / "planner" / (name + ".json"));
    ASSERT_TRUE(file.ok()) << file.status();
    ExpectSame(PaperProblem(name), *file);
  }
}

// What Algorithm 1 gives for problems of real size, by hand elsewhere: README of the problems.
TEST(LimePaperTest, IsAsGoodAsKnownOnProblemsOfRealSize) {
  const std::pair<const char*, double> known[] = {{"E1", 201},  {"E2", 467},   {"E3", 1029},  {"S1", 1433}, {"S2", 2570},
                                                  {"S3", 4131}, {"S1b", 2056}, {"S2b", 2861}, {"S3b", 3716}};
  for (const auto& [name, ms] : known) {
    const Instance instance = PaperProblem(name);
    const FoundPlan found = PlanBy(Strategy::kLimePaper, instance, {});
    ASSERT_TRUE(found.feasible) << name;
    EXPECT_LE(found.ms_per_step, ms) << name;
    EXPECT_DOUBLE_EQ(found.ms_per_step, Evaluator(instance).MsPerStep(found.plan)) << name;
  }
}

// Two blocks of 40 MB and room for one and a bit: what a stage streams for two micro-batches must
// be in its pool together, and is not where each of them reads it again.
TEST(StrategiesTest, LimeReadsAgainForEveryMicroBatchWhereNothingElseFits) {
  Instance instance;
  instance.blocks = {{Instance::Kind::kLayer, 0, 40}, {Instance::Kind::kLayer, 1, 40}, {Instance::Kind::kLayer, 2, 40}};
  instance.devices = {{.name = "a", .mem_mb = 81, .disk_mb_per_ms = 10, .comp_ms = {1, 1, 1}}};
  instance.microbatches = 2;
  const FoundPlan offload = PlanBy(Strategy::kPpOffload, instance, {});
  ASSERT_TRUE(offload.feasible) << offload.reason;
  EXPECT_FALSE(PlanBatches(Strategy::kLime, instance, {.time_limit_ms = 50})->found.feasible);
  const BatchedPlan lime = *PlanBatches(Strategy::kLime, instance, {.time_limit_ms = 50, .may_reload = true});
  ASSERT_TRUE(lime.found.feasible);
  EXPECT_FALSE(lime.found.reads_once);
  EXPECT_EQ(lime.found.ms_per_step, offload.ms_per_step);
}

TEST(StrategiesTest, BatchedOffloadChoosesTheSmallestBatchThatServesAll) {
  Instance instance;
  instance.blocks = {{Instance::Kind::kLayer, 0, 40}};
  instance.devices = {
      {.name = "a", .mem_mb = 81, .disk_mb_per_ms = 10, .comp_ms = {1}, .comp_ms_by_batch = {{1, {1}}, {5, {3}}, {8, {30}}}}};
  instance.net.tx_ms_by_batch = {{1, 0}, {5, 0}, {8, 0}};
  for (const auto& [sequences, batch] : {std::pair{5, 5}, std::pair{6, 8}, std::pair{20, 8}}) {
    instance.sequences = sequences;
    EXPECT_EQ(PlanBatches(Strategy::kPpOffloadBatched, instance, {})->batch, batch) << sequences;
  }
}

TEST(StrategiesTest, LimeIsNeverWorseThanAnyOther) {
  int found_by[std::size(kStrategyNames.all)] = {};
  const int cases = Cases(75, 300);
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(cases); ++seed) {
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(24, 4, 3);
    const StagePlan tight = random.MakePlan(instance);
    if (random.Chance(80)) random.FitMemory(tight, instance);
    const FoundPlan lime = PlanBy(Strategy::kLime, instance, {.time_limit_ms = 10});
    for (const auto& [strategy, name] : kStrategyNames.all) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " " << name);
      const FoundPlan other = PlanBy(strategy, instance, {.time_limit_ms = 10});
      if (!other.feasible) {
        EXPECT_NE(other.reason, "");
        continue;
      }
      ++found_by[static_cast<int>(strategy)];
      ASSERT_TRUE(other.plan.Validate(instance).ok());
      const bool reloads = instance.microbatches > 1 && (strategy == Strategy::kPpOffload || strategy == Strategy::kPpOffloadBatched);
      if (reloads) {  // its time is that of another schedule, which `lime plan` may take too
        EXPECT_FALSE(other.reads_once);
        const auto either = PlanBatches(Strategy::kLime, instance, {.time_limit_ms = 10, .may_reload = true});
        ASSERT_TRUE(either.ok() && either->found.feasible);
        EXPECT_LE(either->found.ms_per_step, other.ms_per_step * (1 + 1e-9));
        EXPECT_LE(either->found.ms_per_step, (lime.feasible ? lime : other).ms_per_step * (1 + 1e-9));
        continue;
      }
      ASSERT_TRUE(lime.feasible);
      EXPECT_LE(lime.ms_per_step, other.ms_per_step * (1 + 1e-9));
    }
  }
  for (const auto& [strategy, name] : kStrategyNames.all) {
    std::printf("%s found a plan %d times of %d\n", std::string(name).c_str(), found_by[static_cast<int>(strategy)], cases);
    EXPECT_GT(found_by[static_cast<int>(strategy)], cases / 15);
  }
}

}  // namespace
}  // namespace lime
