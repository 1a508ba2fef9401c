// The exact evaluation against cases worked by hand and against a slow oracle of another structure.
#include "planner/evaluation/evaluator.h"

#include <chrono>
#include <cmath>

#include "gtest/gtest.h"
#include "planner/plan/instance/plan_json.h"
#include "tests/planner/random_plans.h"
#include "tests/planner/schedule_oracle.h"

namespace lime {
namespace {

Instance OneDevice(double mem_mb, int microbatches = 1) {
  Instance instance;
  instance.devices = {{.name = "a", .mem_mb = mem_mb, .disk_mb_per_ms = 10, .disk_lat_ms = 1, .comp_ms = {2, 3}}};
  instance.blocks = {{.mb = 100}, {.mb = 50}};
  instance.net = {.tx_ms = 5, .lat_ms = 7};  // of no use
  instance.microbatches = microbatches;
  return instance;
}

const StagePlan kBothStreamed = {.stages = {{0, 0, 2}}, .streamed = {0, 1}};

TEST(EvaluatorTest, WithRoomForOneBlockTheDiskWaitsForEveryUse) {
  // Pool 100: loads of 11 and 6 ms, each after the use of the other: 11 + 2 + 6 + 3.
  const Instance instance = OneDevice(100);
  EXPECT_DOUBLE_EQ(Evaluator(instance).MsPerStep(kBothStreamed), 22);
}

TEST(EvaluatorTest, WithRoomForBothTheDiskIsTheLimit) {
  // Pool 150: a load waits only for the last use of its own block, long ago, so the disk never
  // stops: 11 + 6.
  const Instance instance = OneDevice(150);
  EXPECT_DOUBLE_EQ(Evaluator(instance).MsPerStep(kBothStreamed), 17);
}

TEST(EvaluatorTest, AResidentBlockHidesTheLoad) {
  // Block 1 streams through a pool of 50: load 6, of it 2 under block 0's computing; the use of 3
  // delays the next load: 6 + 3.
  const Instance instance = OneDevice(150);
  EXPECT_DOUBLE_EQ(Evaluator(instance).MsPerStep({.stages = {{0, 0, 2}}, .streamed = {1}}), 9);
}

TEST(EvaluatorTest, AllMicroBatchesUseABlockBeforeItLeaves) {
  // Two micro-batches, pool 150 holds both. Step: (0,0) waits for load 0, then 2, then 3 for load
  // 1, then the second: 2 + 3. Block 0 is free when the second micro-batch has computed it. With F
  // the free time of the compute: load 0 ends at L, first micro-batch done at max(L + 2, L + 6) + 3
  // = L + 9, second's block 0 at L + 11, block 1 at L + 14. The next load 0 starts at max(L + 6, L
  // + 11) and ends at L + 22: 22 ms per step.
  const Instance instance = OneDevice(150, 2);
  EXPECT_DOUBLE_EQ(Evaluator(instance).MsPerStep(kBothStreamed), 22);
  const Instance small = OneDevice(149, 2);
  Evaluator evaluator(small);
  EXPECT_TRUE(std::isinf(evaluator.MsPerStep(kBothStreamed)));
  EXPECT_NE(evaluator.Infeasibility(), "");
}

TEST(EvaluatorTest, MemoryHasASlackOfAMillionthMegabyte) {
  Instance instance = OneDevice(150 - 1e-7);
  EXPECT_DOUBLE_EQ(Evaluator(instance).MsPerStep({.stages = {{0, 0, 2}}, .streamed = {}}), 5);
  instance.devices[0].mem_mb = 150 - 1e-5;
  EXPECT_TRUE(std::isinf(Evaluator(instance).MsPerStep({.stages = {{0, 0, 2}}, .streamed = {}})));
}

TEST(EvaluatorTest, TheFirstStageCarriesTheEmbedding) {
  Instance instance = OneDevice(150);
  instance.embed_mb = 1;
  Evaluator evaluator(instance);
  EXPECT_TRUE(std::isinf(evaluator.MsPerStep({.stages = {{0, 0, 2}}, .streamed = {}})));
  EXPECT_EQ(evaluator.used_mb()[0], 151);
  EXPECT_EQ(evaluator.pool_mb()[0], -1);
}

// 150 MB of blocks in 150 MB: the embedding of 40 MB is read by rows, half a millisecond before the
// first block of every micro-batch.
TEST(EvaluatorTest, AnEmbeddingReadByRowsCostsTimeInsteadOfMemory) {
  const StagePlan cold = {.stages = {{0, 0, 2}}, .embedding_by_rows = true};
  for (const int microbatches : {1, 3}) {
    Instance instance = OneDevice(150, microbatches);
    instance.embed_mb = 40;
    EXPECT_FALSE(cold.Validate(instance).ok());
    instance.devices[0].embed_rows_ms = 0.5;
    EXPECT_TRUE(cold.Validate(instance).ok());
    Evaluator evaluator(instance);
    EXPECT_DOUBLE_EQ(evaluator.MsPerStep(cold), 5.5 * microbatches);
    EXPECT_EQ(evaluator.used_mb()[0], 150);
    EXPECT_TRUE(std::isinf(evaluator.MsPerStep({.stages = {{0, 0, 2}}})));
  }
}

// The rows are read while the first block's load goes on: pool 100 for blocks of 11 and 6 ms to
// read, as above 11 + 2 + 6 + 3.
TEST(EvaluatorTest, RowsAreReadWhileTheFirstBlockLoads) {
  Instance instance = OneDevice(100);
  instance.devices[0].embed_rows_ms = 4;
  EXPECT_DOUBLE_EQ(Evaluator(instance).MsPerStep({.stages = {{0, 0, 2}}, .streamed = {0, 1}, .embedding_by_rows = true}), 22);
}

// One evaluator for all plans of an instance: nothing of a plan may leak into the next.
TEST(EvaluatorTest, AgreesWithTheEventByEventOracle) {
  int feasible = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(10, 3, 3);
    const StagePlan tight = random.MakePlan(instance);
    if (random.Chance(80)) random.FitMemory(tight, instance);
    ASSERT_TRUE(instance.Validate().ok()) << instance.Validate().message();
    Evaluator evaluator(instance);
    for (const StagePlan& plan : {tight, random.MakePlan(instance), random.MakePlan(instance)}) {
      ASSERT_TRUE(plan.Validate(instance).ok()) << plan.Validate(instance).message();
      const double ms = evaluator.MsPerStep(plan);
      const OracleAnswer oracle = AskOracle(instance, plan);
      ASSERT_EQ(std::isfinite(ms), oracle.feasible) << evaluator.Infeasibility();
      for (int d = 0; d < instance.NumDevices(); ++d) ASSERT_NEAR(evaluator.used_mb()[d], oracle.used_mb[d], 1e-9);
      for (int d = 0; d < instance.NumDevices(); ++d) ASSERT_NEAR(evaluator.pool_mb()[d], oracle.pool_mb[d], 1e-9);
      if (!oracle.feasible) continue;
      ++feasible;
      ASSERT_NEAR(ms, oracle.ms_per_step, 1e-9 * (1 + ms)) << ToJson(plan);
      for (int d = 0; d < instance.NumDevices(); ++d) ASSERT_LE(oracle.most_held_mb[d], std::max(0.0, oracle.pool_mb[d]) + 1e-5);
    }
  }
  EXPECT_GT(feasible, 1500);  // the comparison is of schedules, not only of refusals
}

// A pool that holds one block is the smallest; cutting the blocks in pieces lets the same pool read
// ahead.
TEST(EvaluatorTest, PiecesReadAheadWhereWholeBlocksCannot) {
  Instance instance = OneDevice(100);
  instance.devices[0].disk_lat_ms = 0;
  const double whole = Evaluator(instance).MsPerStep(kBothStreamed);
  Instance cut = instance;
  cut.blocks.assign(15, {.mb = 10});
  cut.devices[0].comp_ms.assign(15, 0.3);
  for (int piece = 0; piece < 10; ++piece) cut.devices[0].comp_ms[piece] = 0.2;
  StagePlan pieces = {.stages = {{0, 0, 15}}};
  for (int piece = 0; piece < 15; ++piece) pieces.streamed.push_back(piece);
  // Whole, one block at a time: 10 + 2 + 5 + 3. In pieces the disk never stops: 150 MB at 10 MB/ms.
  Evaluator evaluator(cut);
  EXPECT_NEAR(evaluator.MsPerStep(pieces), AskOracle(cut, pieces).ms_per_step, 1e-9);
  EXPECT_NEAR(evaluator.MsPerStep(pieces), 15, 1e-9);
  EXPECT_DOUBLE_EQ(whole, 20);
}

// 80 layers over 5 devices, two visits each, every third MLP half streamed: what a search asks
// thousands of times.
TEST(EvaluatorTest, PrintsTheTimeOfAnEvaluationOfRealSize) {
  Instance instance;
  for (int layer = 0; layer < 80; ++layer) {
    instance.blocks.push_back({.kind = Instance::Kind::kAttention, .layer = layer, .mb = 302, .kv_mb = 8});
    instance.blocks.push_back({.kind = Instance::Kind::kMlp, .layer = layer, .mb = 1409});
  }
  for (int d = 0; d < 5; ++d) {
    instance.devices.push_back({.mem_mb = 30000, .disk_mb_per_ms = 2, .disk_lat_ms = 0.3, .comp_ms = std::vector<double>(160, 5.0)});
  }
  instance.net = {.tx_ms = 1.3, .lat_ms = 0.3};
  StagePlan plan;
  for (int visit = 0; visit < 10; ++visit) plan.stages.push_back({visit % 5, visit * 16, visit * 16 + 16});
  for (int layer = 0; layer < 80; layer += 3) plan.streamed.push_back(2 * layer + 1);
  Evaluator evaluator(instance);
  const double first = evaluator.MsPerStep(plan);
  ASSERT_TRUE(std::isfinite(first)) << evaluator.Infeasibility();
  double best_us = 1e9;
  for (int round = 0; round < 20; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) ASSERT_EQ(evaluator.MsPerStep(plan), first);
    best_us = std::min(best_us, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 20);
  }
  std::printf("one evaluation: %.1f us (%.1f ms per step)\n", best_us, first);
}

}  // namespace
}  // namespace lime
