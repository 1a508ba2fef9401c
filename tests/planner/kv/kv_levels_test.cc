#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/baselines/online_memory.h"
#include "planner/batches.h"
#include "planner/kv/kv_growth.h"
#include "planner/sim/simulator.h"
#include "tests/planner/kv/simulate_changes.h"
#include "tests/planner/random_clusters.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

#ifdef LIME_SANITIZED
constexpr int kLevelSeeds = 60;
#else
constexpr int kLevelSeeds = 400;
#endif

TEST(KvLevelsTest, AnAverageIsOverThePagesThatAreGoneThrough) {
  const KvLevels levels{.levels = {{{.layer_pages = 10}, 1}, {{.layer_pages = 20}, 2}, {{.layer_pages = 40}, 4}}};
  EXPECT_EQ(MeanMs(levels, 5, 10), 1);
  EXPECT_EQ(MeanMs(levels, 0, 20), 1.5);
  EXPECT_EQ(MeanMs(levels, 15, 25), 3);
  EXPECT_EQ(MeanMs(levels, 15, 15), 2) << "nothing is to come";
  EXPECT_EQ(MeanMs(levels, 30, 99), 4) << "beyond the last there is none";
  EXPECT_EQ(MeanMs(levels, 41, 99), 4);
}

// A small model, a first level of `kv_tokens` and the rest of the context to come.
absl::StatusOr<Plan> LevelsPlan(int64_t kv_tokens, int32_t sequences = 1, const ModelSpec& spec = SmallModel()) {
  const std::vector<ClusterDevice> devices = {Board("a", 60 * kMiB), Board("b", 80 * kMiB, 20e9), Board("c", 50 * kMiB)};
  const PlanRequest request{.context = 4096, .kv_tokens = kv_tokens, .sequences = sequences, .batches = {sequences}, .part_bytes = kMiB};
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec, devices, request));
  const FoundPlan found = SearchPlan(problem.instance, {.granularity = Granularity::kWholeBlock, .time_limit_ms = 300});
  if (!found.feasible) return absl::ResourceExhaustedError(found.reason);
  LIME_ASSIGN_OR_RETURN(Plan plan, MakePlan(problem, {.stages = found.plan, .batch = sequences}));
  return GrowsKv(plan) ? PlanToGrow(plan) : plan;
}

TEST(KvLevelsTest, EveryLevelFitsAndIsPredictedAsItIsSimulated) {
  for (const int32_t sequences : {1}) {
    const absl::StatusOr<Plan> plan = LevelsPlan(512, sequences);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE(GrowsKv(*plan));
    const KvLevels answer = MakeKvLevels(*plan);
    EXPECT_EQ(answer.exhausted, "");
    ASSERT_GE(answer.levels.size(), 4u);
    EXPECT_EQ(answer.levels.front().residency, ResidencyOf(*plan));
    EXPECT_EQ(answer.levels.back().residency.layer_pages, FullLayerPages(*plan));
    int64_t before = 0;
    for (const KvLevel& level : answer.levels) {
      EXPECT_GT(level.residency.layer_pages, before);
      before = level.residency.layer_pages;
      const absl::StatusOr<Plan> changed = WithResidency(*plan, level.residency);
      ASSERT_TRUE(changed.ok()) << changed.status();
      for (const PlanDevice& device : changed->devices) EXPECT_GE(device.memory.margin, device.least_margin);
      const absl::StatusOr<SimulationResult> result = SimulateDecode(*changed, {.timeline = false});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_NEAR(result->MsPerStep(), level.ms_per_step, 1e-6 * level.ms_per_step);
    }
    EXPECT_EQ(MakeKvLevels(*plan).levels, answer.levels) << "the same plan, the same levels";
  }
}

TEST(KvLevelsTest, OnlyTheLayersWithKvGrowAndStatesStayAsTheyAre) {
  const ModelSpec spec = SmallHybrid(/*layers=*/8);
  const absl::StatusOr<Plan> plan = LevelsPlan(512, /*sequences=*/2, spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec);
  const KvLevels answer = MakeKvLevels(*plan);
  EXPECT_EQ(answer.exhausted, "");
  ASSERT_GT(answer.levels.size(), 1u);
  EXPECT_EQ(answer.levels.back().residency.layer_pages, FullLayerPages(*plan));
  for (const KvLevel& level : answer.levels) {
    const absl::StatusOr<Plan> changed = WithResidency(*plan, level.residency);
    ASSERT_TRUE(changed.ok()) << changed.status();
    ASSERT_TRUE(changed->Validate(spec).ok()) << changed->Validate(spec);
    int64_t pages = 0;
    Bytes state = 0;
    for (const PlanDevice& device : changed->devices) pages += device.kv_pages, state += device.memory.state;
    EXPECT_EQ(pages, 2 * level.residency.layer_pages) << "layers 3 and 7 have KV";
    EXPECT_EQ(state, 2 * 6 * spec.StateBytes(0)) << "two sequences, six layers";
  }
}

TEST(KvLevelsTest, ASmallerFirstLevelIsFasterAndTheLastIsNoSlowerThanStreamingAll) {
  const absl::StatusOr<Plan> grows = LevelsPlan(512), whole = LevelsPlan(0);
  ASSERT_TRUE(grows.ok() && whole.ok());
  const KvLevels answer = MakeKvLevels(*grows);
  ASSERT_EQ(answer.exhausted, "");
  EXPECT_LT(answer.levels.front().ms_per_step, whole->predicted.ms_per_step);
  Residency all{.layer_pages = FullLayerPages(*grows)};
  for (int p = 0; p < grows->NumParts(); ++p) all.streamed.push_back(p);
  const absl::StatusOr<Plan> streams = WithResidency(*grows, all);
  ASSERT_TRUE(streams.ok()) << streams.status();
  EXPECT_LT(answer.levels.back().ms_per_step, SimulateDecode(*streams, {.timeline = false})->MsPerStep());
}

TEST(KvLevelsTest, ThePapersRuleStreamsWholeBlocksInEveryVisitAndIsNotFaster) {
  const absl::StatusOr<Plan> plan = LevelsPlan(512);
  ASSERT_TRUE(plan.ok());
  const KvLevels lime = MakeKvLevels(*plan), paper = MakeKvLevels(*plan, {.rule = &PaperRule});
  ASSERT_GE(paper.levels.size(), 1u);
  for (size_t i = 0; i < std::min(lime.levels.size(), paper.levels.size()); ++i) {
    EXPECT_LE(lime.levels[i].ms_per_step, paper.levels[i].ms_per_step * 1.001) << i;
  }
}

// ---- Random clusters

// A plan whose KV begins with few pages of a layer, and budgets that all of it makes tight.
std::optional<Plan> GrowingPlan(uint64_t seed) {
  RandomClusters clusters(seed);
  const RandomClusters::Drawn drawn = clusters.Draw();
  absl::StatusOr<Plan> plan = MakePlan(drawn.problem, drawn.choice);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok() || !plan->reads_once) return std::nullopt;
  RandomPlans& random = clusters.random();
  const int64_t pages = plan->sequences * random.Int(1, 32);
  for (int p = 0; p < plan->NumParts(); ++p) {
    plan->parts[p].kv_pages = BeginsBlock(*plan, p) && HasKv(plan->parts[p].block.kind) ? pages : 0;
  }
  const std::vector<PlanNeed> needs = NeedsOf(*plan);
  for (int d = 0; d < plan->NumDevices(); ++d) {
    if (needs[d].weights == 0) continue;
    PlanDevice& device = plan->devices[d];
    PlanMemory& memory = device.memory;
    device.kv_pages = needs[d].kv_pages, memory.kv = needs[d].kv_pages * plan->page_bytes;
    memory.margin = device.least_margin = random.Int(1, 16'000'000);
    device.budget = memory.total();
  }
  EXPECT_TRUE(plan->Validate().ok()) << plan->Validate();
  return *std::move(plan);
}

// What the plan has at a level, added up from what its parts, pages and rings need.
void ExpectRoomAtEveryLevel(const Plan& plan, const KvLevels& levels) {
  std::vector<PlanAt> changes;
  for (const KvLevel& level : levels.levels) {
    const absl::StatusOr<Plan> changed = WithResidency(plan, level.residency);
    ASSERT_TRUE(changed.ok()) << changed.status();
    const std::vector<PlanNeed> needs = NeedsOf(*changed);
    for (int d = 0; d < plan.NumDevices(); ++d) {
      const PlanDevice& device = plan.devices[d];
      const Bytes used = needs[d].weights + needs[d].embedding + needs[d].hosted + needs[d].fetched + needs[d].kv_pages * plan.page_bytes +
                         needs[d].state + device.memory.ring + device.memory.activations + device.memory.runtime;
      ASSERT_LE(needs[d].ring, device.memory.ring);
      ASSERT_LE(used + device.least_margin, device.budget) << level.residency.layer_pages << " pages, device " << device.name;
      ASSERT_GE(changed->devices[d].memory.margin, device.least_margin);
    }
    if (level.residency != ResidencyOf(plan)) changes.push_back({10.1 * static_cast<double>(changes.size() + 1), *changed});
  }
  const absl::StatusOr<SimulationResult> result = SimulateChanges(plan, changes, {.steps = 40, .timeline = false});
  ASSERT_TRUE(result.ok()) << result.status();
}

TEST(KvLevelsTest, WhatIsToBeLeftFreeIsFreeAtEveryLevelOfEveryRule) {
  int grown = 0, tight = 0, refused = 0;
  for (uint64_t seed = 1; seed <= kLevelSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const std::optional<Plan> plan = GrowingPlan(seed);
    if (!plan) continue;
    for (const OnlineRule rule : {kLimeRule, &PaperRule, &WholeLayersRule}) {
      const KvLevelOptions options{.rule = rule, .max_levels = 5, .work = 1e5};
      absl::StatusOr<Plan> grows = rule == kLimeRule ? PlanToGrow(*plan, options) : *plan;
      if (!grows.ok()) {
        ASSERT_EQ(grows.status().code(), absl::StatusCode::kResourceExhausted) << grows.status();
        ++refused;
        continue;
      }
      const KvLevels levels = MakeKvLevels(*grows, options);
      ASSERT_NO_FATAL_FAILURE(ExpectRoomAtEveryLevel(*grows, levels));
      grown += levels.levels.size() > 1 ? 1 : 0;
      // With less left free more stays: what was held mattered.
      Plan greedy = *grows;
      for (PlanDevice& device : greedy.devices) device.least_margin = 0;
      tight += MakeKvLevels(greedy, options).levels == levels.levels ? 0 : 1;
    }
  }
  EXPECT_GT(grown, kLevelSeeds / 8);
  EXPECT_GT(tight, kLevelSeeds / 8);
  EXPECT_GT(refused, 0);
}

// Two devices that take turns, two layers at a time; memory for the plan's own level, and a ring.
Plan ThreeVisits() {
  const ModelSpec spec = *DescribeModel(LlamaConfig(/*layers=*/12, /*hidden=*/512, /*inner=*/2048, /*vocab=*/8000), "deep");
  const std::vector<ClusterDevice> devices = {Board("a", kGiB), Board("b", kGiB)};
  const PlanProblem problem = *MakePlanProblem(spec, devices, {.context = 4096, .kv_tokens = 256, .batches = {1}, .part_bytes = 0});
  PlanChoice choice{.batch = 1};
  choice.stages.embedding_by_rows = true;
  std::vector<Stage>& stages = choice.stages.stages;
  for (int p = 0; p < problem.head.NumParts(); ++p) {
    const BlockId block = problem.head.parts[p].block;
    const bool begins = block.kind == BlockKind::kAttention && block.layer % 2 == 0;
    if (begins) stages.push_back({.device = static_cast<int32_t>(stages.size() % 2), .lo = p});
    stages.back().hi = p + 1;
  }
  Plan plan = *MakePlan(problem, choice);
  for (PlanDevice& device : plan.devices) {
    device.memory.ring = 16 * kMiB;
    device.memory.margin = device.least_margin = 0;
    device.budget = device.memory.total();
  }
  return plan;
}

// By stage, how many more attention and MLP blocks stream than in the plan.
std::vector<std::pair<int, int>> MoreBlocks(const Plan& plan, const Residency& residency) {
  std::vector<std::pair<int, int>> more(plan.stages.size());
  for (const int32_t p : residency.streamed) {
    if (plan.parts[p].streamed || plan.parts[p].block.kind == BlockKind::kHead) continue;
    auto& [attention, mlp] = more[StageOf(plan, p)];
    ++(plan.parts[p].block.kind == BlockKind::kAttention ? attention : mlp);
  }
  return more;
}

TEST(KvLevelsTest, WithoutAMemoryPlannerWholeLayersStreamInEveryVisit) {
  const Plan plan = ThreeVisits();
  ASSERT_TRUE(plan.Validate().ok()) << plan.Validate();
  const KvLevels lime = MakeKvLevels(plan), whole = MakeKvLevels(plan, {.rule = &WholeLayersRule});
  ASSERT_EQ(lime.exhausted, "");
  ASSERT_EQ(whole.exhausted, "");
  ASSERT_EQ(whole.levels.size(), lime.levels.size());
  for (size_t i = 0; i < whole.levels.size(); ++i) {
    const std::vector<std::pair<int, int>> more = MoreBlocks(plan, whole.levels[i].residency);
    for (size_t j = 0; j < more.size(); ++j) {
      EXPECT_EQ(more[j].first, more[j].second) << "level " << i << " stage " << j;
      EXPECT_EQ(more[j], more[j % 2]) << "level " << i << ": visit " << j << " as the first";
    }
    EXPECT_LE(lime.levels[i].ms_per_step, whole.levels[i].ms_per_step * 1.001) << i;
  }
  EXPECT_GT(MoreBlocks(plan, whole.levels.back().residency)[0].first, 0);
  EXPECT_GT(whole.levels.back().ms_per_step, lime.levels.back().ms_per_step * 1.1) << "what the planner is for";
}

TEST(KvLevelsTest, APlanWithAllItsPagesHasOneLevel) {
  const absl::StatusOr<Plan> plan = LevelsPlan(0);
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(GrowsKv(*plan));
  EXPECT_EQ(MakeKvLevels(*plan).levels.size(), 1u);
}

}  // namespace
}  // namespace lime
