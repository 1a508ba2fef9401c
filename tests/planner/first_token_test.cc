// The time to the first token: by hand, against the event-by-event oracle, and as a bound on what a
// search may find.
#include "planner/evaluation/first_token.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/instance/plan_json.h"
#include "planner/search/plan_search.h"
#include "tests/planner/random_plans.h"
#include "tests/planner/schedule_oracle.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

// A sanitizer takes minutes for all of them and looks at the same paths.
#ifdef LIME_SANITIZED
constexpr int kPrompts = 100, kSearches = 6;
#else
constexpr int kPrompts = 800, kSearches = 30;
#endif

// Two devices, a block of 10 MB each; a chunk takes 4 ms on the one and 6 on the other, 1 ms to
// send and 0.5 to arrive.
Instance TwoDevices() {
  Instance instance;
  instance.devices = {{.name = "a", .mem_mb = 10, .disk_mb_per_ms = 2, .comp_ms = {4, 6}},
                      {.name = "b", .mem_mb = 10, .disk_mb_per_ms = 2, .comp_ms = {4, 6}}};
  instance.blocks = {{.layer = 0, .mb = 10}, {.layer = 1, .mb = 10}};
  instance.net = {.tx_ms = 1, .lat_ms = 0.5};
  return instance;
}

// 100 tokens in 4 chunks. The second device is the bottleneck: 4 + 1.5 until the first chunk is
// there, then 4 x 6, however they are swept.
TEST(FirstTokenTest, ChunksFlowThroughAPipeline) {
  const FirstTokenProblem problem = {.prompt_tokens = 100, .chunks = {{.rows = 32, .instance = TwoDevices()}}};
  ASSERT_TRUE(problem.Validate(TwoDevices()).ok());
  const FirstToken first = FirstTokenPredictor(problem).Predict({.stages = {{0, 0, 1}, {1, 1, 2}}});
  EXPECT_TRUE(first.feasible);
  EXPECT_DOUBLE_EQ(first.ms, 4 + 1.5 + 4 * 6);
  EXPECT_EQ(first.chunks, 4);
  EXPECT_EQ(first.chunk_rows, 32);
}

// One device that streams both blocks of 5 ms. A chunk per sweep through a pool of one block: 5 + 4
// + 5 + 6 each. With room for both blocks all three chunks share a sweep: 5 ms until the first
// block is there, then all are computed with the second loaded meanwhile: chunk by chunk 4 + 6.
TEST(FirstTokenTest, ChunksShareASweepWhereThePoolHoldsAStage) {
  Instance instance = TwoDevices();
  instance.devices.pop_back();
  const FirstTokenProblem small = {.prompt_tokens = 96, .chunks = {{.rows = 32, .instance = instance}}};
  const StagePlan plan = {.stages = {{0, 0, 2}}, .streamed = {0, 1}};
  FirstToken first = FirstTokenPredictor(small).Predict(plan);
  EXPECT_EQ(first.chunks_per_sweep, 1);
  EXPECT_DOUBLE_EQ(first.ms, 3 * 20);
  instance.devices[0].mem_mb = 20;
  const FirstTokenProblem large = {.prompt_tokens = 96, .chunks = {{.rows = 32, .instance = instance}}};
  first = FirstTokenPredictor(large).Predict(plan);
  EXPECT_EQ(first.chunks_per_sweep, 3);
  // 5 + 4, the second block comes at 10, 16; then 2 x 10.
  EXPECT_DOUBLE_EQ(first.ms, 16 + 20);
}

// Long chunks cost less each than short ones together, but pass the first device later.
TEST(FirstTokenTest, TheBestSizeOfChunkIsChosen) {
  Instance longer = TwoDevices();
  for (Instance::Device& device : longer.devices) device.comp_ms = {7, 9};
  const FirstTokenProblem problem = {.prompt_tokens = 64,
                                     .chunks = {{.rows = 32, .instance = TwoDevices()}, {.rows = 64, .instance = longer}}};
  const FirstToken first = FirstTokenPredictor(problem).Predict({.stages = {{0, 0, 1}, {1, 1, 2}}});
  EXPECT_DOUBLE_EQ(first.ms, std::min(4 + 1.5 + 2 * 6, 7 + 1.5 + 9));
}

TEST(FirstTokenTest, WhatIsWrongIsNamed) {
  const Instance decode = TwoDevices();
  FirstTokenProblem problem = {.prompt_tokens = 0, .chunks = {{.rows = 32, .instance = decode}}};
  EXPECT_THAT(std::string(problem.Validate(decode).message()), HasSubstr("the prompt has 0 tokens"));
  problem = {.prompt_tokens = 1};
  EXPECT_THAT(std::string(problem.Validate(decode).message()), HasSubstr("no chunk size"));
  problem.chunks = {{.rows = 0, .instance = decode}};
  EXPECT_THAT(std::string(problem.Validate(decode).message()), HasSubstr("a chunk has 0 tokens"));
  problem.chunks = {{.rows = 32, .instance = decode}};
  problem.chunks[0].instance.blocks.pop_back();
  for (Instance::Device& device : problem.chunks[0].instance.devices) device.comp_ms.pop_back();
  EXPECT_THAT(std::string(problem.Validate(decode).message()), HasSubstr("1 blocks on 2 devices, but the plan has 2 blocks on 2"));
  problem.chunks[0].instance = decode;
  problem.chunks[0].instance.devices[1].embed_rows_ms = 1;
  EXPECT_THAT(std::string(problem.Validate(decode).message()), HasSubstr("device 1 (\"b\") reads rows of the embedding"));
}

TEST(FirstTokenTest, PromptsAgreeWithTheEventByEventOracle) {
  int feasible = 0, last_is_short = 0;
  for (int seed = 0; seed < kPrompts; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(10, 3, 3);
    const StagePlan tight = random.MakePlan(instance);
    if (random.Chance(80)) random.FitMemory(tight, instance);
    Evaluator evaluator(instance);
    for (const StagePlan& plan : {tight, random.MakePlan(instance)}) {
      const int chunks = random.Int(1, 20), per_sweep = random.Int(1, std::min(chunks, 6));
      const double ms = evaluator.PromptMs(plan, chunks, per_sweep), oracle_ms = AskOraclePromptMs(instance, plan, chunks, per_sweep);
      ASSERT_EQ(std::isfinite(ms), std::isfinite(oracle_ms));
      if (!std::isfinite(ms)) continue;
      ++feasible;
      last_is_short += per_sweep > 1 && chunks % per_sweep != 0 ? 1 : 0;
      ASSERT_NEAR(ms, oracle_ms, 1e-9 * (1 + ms)) << chunks << " chunks, " << per_sweep << " per sweep\n" << ToJson(plan);
      // Nothing of a prompt leaks into what is evaluated next.
      ASSERT_EQ(evaluator.MsPerStep(plan), Evaluator(instance).MsPerStep(plan));
    }
  }
  EXPECT_GT(feasible, 3 * kPrompts / 4);
  EXPECT_GT(last_is_short, kPrompts / 16);
}

// Beyond the steps that are simulated a prompt goes on at the steady rate.
TEST(FirstTokenTest, LongPromptsGoOnAtTheSteadyRate) {
  const Instance instance = TwoDevices();
  Evaluator evaluator(instance);
  const StagePlan plan = {.stages = {{0, 0, 1}, {1, 1, 2}}};
  EXPECT_DOUBLE_EQ(evaluator.PromptMs(plan, 1000, 1), 5.5 + 1000 * 6);
  EXPECT_DOUBLE_EQ(evaluator.PromptMs(plan, 1000, 10), 5.5 + 1000 * 6);
}

struct BoundedBest {
  double ms_per_step = std::numeric_limits<double>::infinity();
  double least_first_ms = std::numeric_limits<double>::infinity();
};

// Every plan of at most two devices' blocks, tokens and first tokens.
BoundedBest BoundEveryPlan(const Instance& instance, const FirstTokenBound& bound) {
  BoundedBest best;
  Evaluator evaluator(instance);
  FirstTokenPredictor predictor(bound.problem);
  const int n = instance.NumBlocks(), choices = 2 * instance.NumDevices();
  const int plans = static_cast<int>(std::lround(std::pow(choices, n)));
  for (int code = 0; code < 2 * plans; ++code) {
    Assignment assignment = {.device = std::vector<int16_t>(n), .streamed = std::vector<uint8_t>(n), .embedding_by_rows = code >= plans};
    for (int b = 0, rest = code % plans; b < n; ++b, rest /= choices) {
      assignment.device[b] = static_cast<int16_t>(rest % choices / 2);
      assignment.streamed[b] = rest % 2;
    }
    const StagePlan plan = ToPlan(assignment);
    if (!plan.Validate(instance).ok()) continue;
    const double ms = evaluator.MsPerStep(plan);
    if (!std::isfinite(ms)) continue;
    const double first_ms = predictor.Predict(plan).ms;
    best.least_first_ms = std::min(best.least_first_ms, first_ms);
    if (first_ms <= bound.most_ms) best.ms_per_step = std::min(best.ms_per_step, ms);
  }
  return best;
}

TEST(FirstTokenTest, TheSearchFindsTheBestPlanWhoseFirstTokenIsInTime) {
  int feasible = 0, refused = 0, slower = 0;
  for (int seed = 0; seed < kSearches; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomPlans random(seed);
    Instance instance = random.MakeInstance(4, 3, 1);
    random.FitMemory(random.MakePlan(instance), instance);
    Instance chunk = instance;
    for (Instance::Device& device : chunk.devices) {
      const double factor = random.Number(2, 6);
      for (double& ms : device.comp_ms) ms *= factor;
    }
    chunk.net.tx_ms *= 10;
    FirstTokenBound bound = {.problem = {.prompt_tokens = random.Int(1, 200), .chunks = {{.rows = 32, .instance = chunk}}},
                             .most_ms = std::numeric_limits<double>::infinity()};
    const BoundedBest unbounded = BoundEveryPlan(instance, bound);
    if (!std::isfinite(unbounded.ms_per_step) || unbounded.least_first_ms == 0) continue;
    const FoundPlan free = SearchPlan(instance, {.first_token = bound});
    ASSERT_TRUE(free.feasible && free.first_token);
    EXPECT_NEAR(free.ms_per_step, unbounded.ms_per_step, 1e-9 * (1 + unbounded.ms_per_step));
    bound.most_ms = unbounded.least_first_ms + random.Number(0, 1) * (free.first_token->ms - unbounded.least_first_ms);
    const BoundedBest best = BoundEveryPlan(instance, bound);
    for (const bool exhaustive : {true, false}) {
      const FoundPlan found = SearchPlan(instance, {.time_limit_ms = 10, .exhaustive = exhaustive, .first_token = bound});
      if (!exhaustive && !found.feasible) continue;
      ASSERT_TRUE(found.feasible) << found.reason;
      EXPECT_LE(found.first_token->ms, bound.most_ms);
      EXPECT_GE(found.ms_per_step, best.ms_per_step * (1 - 1e-9));
      if (exhaustive) {
        EXPECT_NEAR(found.ms_per_step, best.ms_per_step, 1e-9 * (1 + best.ms_per_step));
      }
    }
    ++feasible;
    slower += best.ms_per_step > unbounded.ms_per_step * (1 + 1e-9) ? 1 : 0;
    bound.most_ms = unbounded.least_first_ms * 0.9;
    const FoundPlan none = SearchPlan(instance, {.first_token = bound});
    EXPECT_FALSE(none.feasible);
    EXPECT_THAT(none.reason, HasSubstr("with the first token within"));
    refused += none.reason.empty() ? 0 : 1;
  }
  EXPECT_GT(feasible, kSearches / 2);
  EXPECT_EQ(refused, feasible);
  if (kSearches >= 15) {  // of few, none may be one where the bound changes what is best
    EXPECT_GT(slower, kSearches / 15);
  }
}

}  // namespace
}  // namespace lime
