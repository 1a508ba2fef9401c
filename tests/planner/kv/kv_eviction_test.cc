#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/kv/kv_levels.h"
#include "planner/plan/baselines/eviction.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/sim/simulator.h"
#include "tests/planner/plan_text.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two devices, a stage each, that keep the KV of 128 of 512 positions; the first computes twice as
// slowly.
Plan Evicting(int32_t sequences = 1, int64_t kept = 128) {
  const std::vector<ClusterDevice> devices = {Board("a", 1 * kGiB, 5e9), Board("b", 1 * kGiB)};
  PlanRequest request{
      .context = 512, .retained_positions = kept, .sequences = sequences, .batches = {1}, .prompt_tokens = 64, .chunks = {64}};
  request.embedding_by_rows = false;
  const auto problem = MakePlanProblem(SmallModel(), devices, request);
  EXPECT_TRUE(problem.ok()) << problem.status();
  const int blocks = problem->instance.NumBlocks();
  int half = blocks / 2;
  while (problem->instance.ContinuesBlock(half)) ++half;
  const auto plan = MakePlan(*problem, {.stages = {.stages = {{0, 0, half}, {1, half, blocks}}},
                                        .microbatches = sequences,
                                        .batch = 1,
                                        .first_token = {.feasible = true, .ms = 1, .chunk_rows = 64, .chunks = 1, .chunks_per_sweep = 1}});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

TEST(KvEvictionTest, KeepsTheNewestPositionsInWholePages) {
  const Plan plan{.context = 100, .retained_positions = 32};
  EXPECT_EQ(EvictedPositions(plan, 32), 0);
  EXPECT_EQ(EvictedPositions(plan, 33), 16);
  EXPECT_EQ(EvictedPositions(plan, 48), 16);
  EXPECT_EQ(EvictedPositions(plan, 49), 32);
  EXPECT_EQ(MostEvicted(plan), 80);
  EXPECT_EQ(RetainedPages(plan), 2);
  EXPECT_EQ(SharedPages(plan), 5);
  const Plan all{.context = 100};
  EXPECT_EQ(EvictedPositions(all, 100), 0);
  EXPECT_EQ(RetainedPages(all), 7);
}

TEST(KvEvictionTest, EvictedPositionsGoAheadOfTheirSequencesRows) {
  const Plan plan{.context = 100, .retained_positions = 32, .sequences = 3, .batch = 3};
  const MicroBatch batch{{{.sequence = 2, .token = 9, .position = 33},
                          {.sequence = 0, .token = 4, .position = 7},
                          {.sequence = 0, .token = 5, .position = 8}}};
  EXPECT_EQ(NumSentRows(plan, batch), 16 + 3);
  const std::vector<int32_t> tokens = {70, 71, 72};
  const MicroBatch all = WithEvicted(plan, batch, [&](int32_t) { return std::span<const int32_t>(tokens); });
  ASSERT_EQ(all.rows.size(), 19u);
  EXPECT_EQ(all.rows[0], (BatchRow{.sequence = 2, .token = 70, .position = 0}));
  EXPECT_EQ(all.rows[2], (BatchRow{.sequence = 2, .token = 72, .position = 2}));
  EXPECT_EQ(all.rows[15], (BatchRow{.sequence = 2, .token = 0, .position = 15}));
  EXPECT_TRUE(std::ranges::equal(std::span(all.rows).subspan(16), batch.rows));
}

TEST(KvEvictionTest, CountsRetainedPagesForEachLayerAndOthersOnce) {
  const Plan plan = Evicting(/*sequences=*/2);
  int64_t pages = 0;
  for (const PlanDevice& device : plan.devices) pages += device.kv_pages;
  EXPECT_EQ(pages, 2 * (4 * 128 / 16 + 2 * (512 - 128) / 16)) << "of 4 layers; and of either device";
}

TEST(KvEvictionTest, AStateHasAbsorbedWhatWouldBeComputedAgain) {
  const std::vector<ClusterDevice> devices = {Board("a", 1 * kGiB)};
  const auto problem = MakePlanProblem(SmallHybrid(), devices, {.context = 512, .retained_positions = 128, .embedding_by_rows = false});
  ASSERT_TRUE(problem.ok()) << problem.status();
  const auto plan = MakePlan(*problem, {.stages = {.stages = {{0, 0, problem->instance.NumBlocks()}}}});
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("linear_attention 0 keeps a state of its sequences"));
}

TEST(KvEvictionTest, APlanIsTheSameAfterItsJson) {
  const Plan plan = Evicting();
  const auto again = ParsePlan(ToJsonText(plan), "plan");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, plan);
  EXPECT_THAT(PlanText(plan), HasSubstr("newest 128 positions of a sequence is kept; that of up to 384 others"));
}

TEST(KvEvictionTest, AStepIsLongerTheMoreIsComputedAgain) {
  const Plan plan = Evicting();
  const auto end = SimulateDecode(plan, {.timeline = false}), begin = SimulateDecode(WithEvictedPositions(plan, 0), {.timeline = false});
  ASSERT_TRUE(end.ok() && begin.ok());
  EXPECT_NEAR(end->MsPerStep(), plan.predicted.ms_per_step, 1e-9 * plan.predicted.ms_per_step);
  // 385 rows of 1.0e8 multiply-adds and more at 100e9 a second, where one row is a read of the
  // weights.
  EXPECT_GT(end->MsPerStep(), 10 * begin->MsPerStep());
  const KvLevels levels = MakeKvLevels(plan);
  ASSERT_EQ(levels.levels.size(), 13u);
  EXPECT_EQ(levels.levels.front().residency.layer_pages, 128 / 16);
  EXPECT_EQ(levels.levels.back().residency.layer_pages, 512 / 16);
  EXPECT_DOUBLE_EQ(levels.levels.front().ms_per_step, begin->MsPerStep());
  for (size_t i = 1; i < levels.levels.size(); ++i) EXPECT_GT(levels.levels[i].ms_per_step, levels.levels[i - 1].ms_per_step);
  EXPECT_LT(levels.levels.back().ms_per_step, end->MsPerStep()) << "the middle of the last ones";
}

TEST(KvEvictionTest, TheTimesAreThoseOfAPlanThatKeepsAllButForWhatIsComputedAgain) {
  const Plan evicts = Evicting(), keeps = Evicting(1, 0);
  ASSERT_EQ(evicts.parts.size(), keeps.parts.size());
  for (int p = 0; p < evicts.NumParts(); ++p)
    EXPECT_NEAR(evicts.parts[p].decode_ms - evicts.parts[p].evicted_ms, keeps.parts[p].decode_ms, 1e-9) << PartName(evicts, p);
  const BlockId last_mlp = {BlockKind::kMlp, 3};
  for (const PlanPart& part : evicts.parts) {
    EXPECT_EQ(part.evicted_ms > 0, part.block.kind != BlockKind::kHead && !(part.block == last_mlp)) << BlockName(part.block);
  }
}

// What is wrong with a plan that is changed so.
std::string Refusal(const std::function<void(Plan&)>& change) {
  Plan plan = Evicting();
  change(plan);
  return std::string(plan.Validate().message());
}

TEST(KvEvictionTest, PlansThatCannotBeAreRefused) {
  EXPECT_THAT(Refusal([](Plan&) {}), IsEmpty());
  EXPECT_THAT(Refusal([](Plan& plan) { plan.retained_positions = 127; }), HasSubstr("not a multiple of 16"));
  EXPECT_THAT(Refusal([](Plan& plan) { plan.retained_positions = 64; }), HasSubstr("at least 80"));
  EXPECT_THAT(Refusal([](Plan& plan) { plan.retained_positions = 512; }), HasSubstr("below the context of 512"));
  EXPECT_THAT(Refusal([](Plan& plan) { plan.retained_positions = 1 << 20; }),
              HasSubstr("\"kept_positions\" = 1048576 is outside 0 to 512"));
  EXPECT_THAT(Refusal([](Plan& plan) { plan.parts[0].streamed = true; }), HasSubstr("streams nothing"));
  EXPECT_THAT(Refusal([](Plan& plan) { plan.parts[0].kv_pages = 9; }), HasSubstr("needs 8 pages of a layer, but one layer has 9"));
  EXPECT_THAT(Refusal([](Plan& plan) { plan.parts[0].evicted_ms = 1e9; }), HasSubstr("evicted_ms"));
  EXPECT_THAT(Refusal([](Plan& plan) { plan.context = int64_t{1} << 40; }), HasSubstr("which exceeds the limit"));
  EXPECT_THAT(Refusal([](Plan& plan) { plan.page_bytes = Bytes{1} << 41; }), HasSubstr("to all layers in turn, which exceeds the limit"));
  EXPECT_THAT(Refusal([](Plan& plan) { plan.reads_once = false; }), HasSubstr("every micro-batch reads"));
  EXPECT_THAT(Refusal([](Plan& plan) { plan.devices[0].kv_pages += 1; }), HasSubstr("the pages of its parts"));
}

}  // namespace
}  // namespace lime
