#include "planner/plan/kv_spill.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/kv/kv_growth.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/plan_residency.h"
#include "planner/search/plan_search.h"
#include "planner/sim/simulator.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

// The small model on boards that hold the KV of `kv_tokens`, with `context` to come.
absl::StatusOr<Plan> SpillPlan(int64_t kv_tokens, int64_t context, int32_t sequences = 1, double disk_rate = 1e9) {
  const ModelSpec spec = SmallModel();
  const std::vector<ClusterDevice> devices = {Board("a", 40 * kMiB, 10e9, disk_rate), Board("b", 60 * kMiB, 20e9, disk_rate)};
  const PlanRequest request{.context = context, .kv_tokens = kv_tokens, .sequences = sequences, .batches = {sequences}, .part_bytes = kMiB};
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec, devices, request));
  const FoundPlan found = SearchPlan(problem.instance, {.granularity = Granularity::kWholeBlock, .time_limit_ms = 200});
  if (!found.feasible) return absl::ResourceExhaustedError(found.reason);
  return MakePlan(problem, {.stages = found.plan, .batch = sequences});
}

TEST(KvSpillTest, CuttingForKvLeavesTheRestOfThePlan) {
  const ModelSpec spec = SmallModel();
  const absl::StatusOr<Plan> plan = SpillPlan(512, 8192, 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::StatusOr<Plan> cut = CutForKv(*plan, spec);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->stages.size(), plan->stages.size());
  EXPECT_EQ(cut->stages.back().hi, cut->NumParts());
  double decode_ms = 0, cut_decode_ms = 0;
  Bytes kept = 0, cut_kept = 0;
  for (const PlanPart& part : plan->parts) decode_ms += part.decode_ms, kept += part.pinned_bytes;
  std::map<int32_t, int64_t> positions;
  for (const PlanPart& part : cut->parts) {
    cut_decode_ms += part.decode_ms, cut_kept += part.pinned_bytes;
    if (part.is_kv()) positions[part.block.layer] += part.kv_end - part.kv_begin;
  }
  EXPECT_NEAR(cut_decode_ms, decode_ms, 0.02 * decode_ms);  // by bytes, which reads round up
  EXPECT_EQ(cut_kept, kept);
  EXPECT_EQ(positions.size(), 4u);
  for (const auto& [layer, count] : positions) EXPECT_EQ(count, 8192) << layer;
  EXPECT_EQ(ResidencyOf(*cut).layer_pages, ResidencyOf(*plan).layer_pages);
}

TEST(KvSpillTest, OnlyLayersWithKvAreCutForIt) {
  const ModelSpec spec = SmallHybrid();
  const std::vector<ClusterDevice> devices = {Board("a", 200 * kMiB)};
  const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, devices, {.context = 4096, .kv_tokens = 512, .part_bytes = kMiB});
  ASSERT_TRUE(problem.ok()) << problem.status();
  const absl::StatusOr<Plan> plan = MakePlan(*problem, {.stages = {.stages = {{0, 0, problem->instance.NumBlocks()}}}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::StatusOr<Plan> cut = CutForKv(*plan, spec);
  ASSERT_TRUE(cut.ok()) << cut.status();
  int64_t positions = 0;
  for (const PlanPart& part : cut->parts) {
    if (!part.is_kv()) continue;
    EXPECT_EQ(part.block, (BlockId{BlockKind::kAttention, 3}));
    positions += part.kv_end - part.kv_begin;
  }
  EXPECT_EQ(positions, 4096);
  Plan broken = *cut;
  std::ranges::find_if(broken.parts, &PlanPart::is_kv)->block = {BlockKind::kLinearAttention, 2};
  EXPECT_FALSE(broken.Validate().ok());
}

TEST(KvSpillTest, LevelsGoOnToDisksWhereMemoryEnds) {
  const ModelSpec spec = SmallModel();
  for (const int32_t sequences : {1, 3}) {
    const absl::StatusOr<Plan> plan = SpillPlan(512, 16384, sequences);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_FALSE(PlanToGrow(*plan).ok()) << "memory holds all KV, and this test shows nothing";
    const absl::StatusOr<Plan> cut = CutForKv(*plan, spec);
    ASSERT_TRUE(cut.ok()) << cut.status();
    const absl::StatusOr<Plan> spills = PlanToSpill(*cut);
    ASSERT_TRUE(spills.ok()) << spills.status();
    EXPECT_TRUE(SpillsKv(*spills));
    EXPECT_TRUE(spills->Validate(spec).ok()) << spills->Validate(spec);
    const KvLevels answer = MakeKvLevels(*spills);
    EXPECT_EQ(answer.exhausted, "");
    EXPECT_EQ(answer.levels.back().residency.layer_pages, FullLayerPages(*spills));
    std::vector<int64_t> pages(spills->devices.size(), 0);
    for (const KvLevel& level : answer.levels) {
      const absl::StatusOr<Plan> changed = WithResidency(*spills, level.residency);
      ASSERT_TRUE(changed.ok()) << changed.status();
      for (int d = 0; d < changed->NumDevices(); ++d) {
        EXPECT_GE(changed->devices[d].kv_pages, pages[d]) << "pages would have to leave while their sequences go on";
        pages[d] = changed->devices[d].kv_pages;
        EXPECT_EQ(changed->devices[d].memory.total(), changed->devices[d].budget);
      }
      // As if all that may be on a disk were: a level is predicted with what is there on average.
      const absl::StatusOr<SimulationResult> result = SimulateDecode(*changed, {.timeline = false});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_GE(result->MsPerStep(), 0.98 * level.ms_per_step);
    }
    EXPECT_GT(answer.levels.back().ms_per_step, answer.levels.front().ms_per_step);
    const absl::StatusOr<Plan> read = ParsePlan(ToJsonText(*spills), "plan.json");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, *spills);
  }
}

TEST(KvSpillTest, NamesWhatIsWrong) {
  const ModelSpec spec = SmallModel();
  const absl::StatusOr<Plan> spills = PlanToSpill(*CutForKv(*SpillPlan(512, 16384), spec));
  ASSERT_TRUE(spills.ok()) << spills.status();
  int device = 0;
  while (spills->devices[device].max_layer_pages == 0) ++device;
  int kv = 0;
  while (!spills->parts[kv].is_kv() || spills->stages[StageOf(*spills, kv)].device != device) ++kv;
  const auto broken = [&](const auto& change) {
    Plan plan = *spills;
    change(plan);
    return std::string(plan.Validate().message());
  };
  EXPECT_THAT(broken([&](Plan& p) { p.devices[device].max_layer_pages = 1; }), HasSubstr("max_layer_pages\" = 1 is outside"));
  EXPECT_THAT(broken([&](Plan& p) { p.parts[kv].streamed = true; }), HasSubstr("positions of KV from 0 on and streams, but 0 positions"));
  EXPECT_THAT(broken([&](Plan& p) { p.parts[kv].kv_begin = 256; }), HasSubstr("has positions 256 to"));
  EXPECT_THAT(broken([&](Plan& p) { p.parts[kv].kv_end += 1; }), HasSubstr("but the next part has"));
  EXPECT_THAT(broken([&](Plan& p) { p.parts[kv].bytes += 1; }), HasSubstr("the bytes of its pages"));
  EXPECT_THAT(broken([&](Plan& p) { p.parts[kv].kv_pages = 1; }), HasSubstr("kv_pages"));
  EXPECT_THAT(broken([&](Plan& p) { p.parts[kv].block.kind = BlockKind::kMlp; }), HasSubstr("has positions of KV, but is of mlp 0"));
  EXPECT_THAT(broken([&](Plan& p) { p.reads_once = false; }), HasSubstr("parts are read for every micro-batch"));
  EXPECT_THAT(broken([&](Plan& p) { std::swap(p.parts[kv], p.parts[kv - 1]); }), HasSubstr("ends the positions of its layer's KV"));
}

TEST(KvSpillTest, MoreKvThanCanBeCountedIsRefused) {
  const ModelSpec spec = SmallModel();
  const absl::StatusOr<Plan> spills = PlanToSpill(*CutForKv(*SpillPlan(512, 16384), spec));
  ASSERT_TRUE(spills.ok()) << spills.status();
  Plan plan = *spills;
  plan.page_bytes = Bytes{1} << 38;
  EXPECT_THAT(std::string(plan.Validate().message()), HasSubstr("sequences in a layer, which exceeds the limit"));
}

TEST(KvSpillTest, EveryPieceHasItsPlaceOnTheDisk) {
  const absl::StatusOr<Plan> spills = PlanToSpill(*CutForKv(*SpillPlan(512, 16384, 3), SmallModel()));
  ASSERT_TRUE(spills.ok()) << spills.status();
  Bytes most = 0;
  for (int32_t d = 0; d < spills->NumDevices(); ++d) {
    Bytes parts = 0;
    for (const Stage& stage : spills->stages) {
      for (int p = stage.lo; stage.device == d && p < stage.hi; ++p)
        parts += spills->parts[p].is_kv() ? KvPartBytes(*spills, spills->parts[p]) : 0;
    }
    EXPECT_EQ(KvOnDiskBytes(*spills, d), spills->devices[d].max_layer_pages > 0 ? parts : 0);
    most = std::max(most, KvOnDiskBytes(*spills, d));
  }
  EXPECT_GT(most, 0);
  Plan lends = *spills;
  for (PlanDevice& device : lends.devices) device.kv_host = 0;
  EXPECT_EQ(KvOnDiskBytes(lends, 1), 0);
}

// Few sequences that are long leave more in memory than many short ones of as many pages.
TEST(KvSpillTest, TheReachCoversTheLongestSequences) {
  Plan plan{.context = 4096, .sequences = 4, .batch = 4};
  PlanDevice device{.max_layer_pages = WorkingPages(plan) + 256};
  EXPECT_EQ(PositionsAway(plan, device, device.max_layer_pages), 0);
  // One whole sequence of 256 pages fits beside the working pages; two leave 128 of each.
  EXPECT_EQ(PositionsAway(plan, device, 512), 2048);
  EXPECT_EQ(PositionsAway(plan, device, 1024), 3072);
  device.max_layer_pages = WorkingPages(plan);
  EXPECT_EQ(PositionsAway(plan, device, 1024), 4096);
  EXPECT_EQ(MeanPositionsAway(plan, device, 1024), static_cast<double>(1024 - device.max_layer_pages) * 16 / 4);
}

}  // namespace
}  // namespace lime
