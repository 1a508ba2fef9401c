#include "planner/plan/model/kv_window.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/kv/kv_growth.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"
#include "planner/search/plan_search.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

// Of four layers, all but `full` have a window.
ModelSpec WindowModel(int64_t window, int full = 1) {
  ModelSpec spec = SmallModel();
  for (int64_t layer = 0; layer + full < spec.config.num_layers(); ++layer) spec.config.layers[static_cast<size_t>(layer)].window = window;
  return spec;
}

// All sequences in one micro-batch.
absl::StatusOr<Plan> WindowPlan(const ModelSpec& spec, PlanRequest request, Bytes budget = 200 * kMiB) {
  const std::vector<ClusterDevice> devices = {Board("a", budget), Board("b", budget)};
  request.batches = {request.sequences};
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec, devices, request));
  const FoundPlan found = SearchPlan(problem.instance, {.granularity = Granularity::kWholeBlock, .time_limit_ms = 300});
  if (!found.feasible) return absl::ResourceExhaustedError(found.reason);
  PlanChoice choice{.stages = found.plan, .batch = request.sequences};
  if (problem.first_token) choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(found.plan);
  return MakePlan(problem, choice);
}

int64_t PagesOfLayerIn(const Plan& plan, int32_t layer) {
  return plan.parts[static_cast<size_t>(PartsOf(plan, {BlockKind::kAttention, layer}).first)].kv_pages;
}

TEST(KvWindowTest, PagesOfAWindowHaveRoomForAMicroBatchAndASharedPage) {
  for (int64_t window = 1; window < 100; ++window) {
    for (int64_t rows = 64; rows < 130; ++rows) {
      int64_t most = 0;  // pages that the rows of one micro-batch see or write
      for (int64_t begin = 500; begin < 516; ++begin)
        most = std::max(most, (begin + rows - 1) / kPageTokens - KvWindow{.positions = window}.FirstPage(begin) + 1);
      ASSERT_EQ(WindowPages(window, rows), most + 1) << window << " " << rows;
    }
  }
  EXPECT_EQ(WindowPages(50, 1), WindowPages(50, kLeastWindowRows));
}

TEST(KvWindowTest, ASlotIsSharedFromItsLastWholePageOnAndNoEarlierThanItsPagesAre) {
  for (int64_t size = 1; size < 60; ++size) {
    const KvWindow window{.positions = size, .pages = WindowPages(size, 64)};
    for (int64_t reached = 1; reached < 500; ++reached) {
      const int64_t least = window.LeastSharedAt(reached), gone = std::max<int64_t>(0, KvPagesFor(reached) - window.pages);
      for (int64_t shared = kPageTokens; shared <= reached; shared += kPageTokens)
        ASSERT_EQ(shared >= least, window.FirstPage(shared) >= gone) << size << " " << reached << " " << shared;
      // Up to 64 positions were computed behind the end of the sequence.
      if (reached > 64) ASSERT_LE(least, (reached - 64) / kPageTokens * kPageTokens);
      ASSERT_LE(window.LeastShared(window.FirstPageTaken(reached)), std::max(least, reached / kPageTokens * kPageTokens));
    }
  }
  EXPECT_EQ(KvWindow{}.LeastSharedAt(1'000'000), 0);
}

TEST(KvWindowTest, APlanCountsTheWindowsOfItsLayers) {
  const ModelSpec spec = WindowModel(100);
  const PlanRequest request{.context = 4096, .sequences = 2, .prompt_tokens = 1000, .chunks = {128}};
  const absl::StatusOr<Plan> plan = WindowPlan(spec, request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int64_t most = WindowPages(100, OwnRows(*plan));
  EXPECT_EQ(OwnRows(*plan), 128);
  EXPECT_EQ(WindowOf(*plan), (KvWindow{.positions = 100, .pages = most}));
  for (const int32_t layer : {0, 1, 2}) EXPECT_EQ(PagesOfLayerIn(*plan, layer), 2 * most);
  EXPECT_EQ(PagesOfLayerIn(*plan, 3), 2 * 4096 / 16);
  Bytes kv = 0;
  for (const PlanDevice& device : plan->devices) kv += device.memory.kv;
  EXPECT_EQ(kv, (3 * 2 * most + 2 * 4096 / 16) * plan->page_bytes);
  EXPECT_EQ(kv, 2 * spec.KvPages(4096, 128) * spec.KvPageBytes());
  EXPECT_FALSE(GrowsKv(*plan));
  EXPECT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec);
  const absl::StatusOr<Plan> read = ParsePlan(ToJsonText(*plan), "plan");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, *plan);
}

// A snapshot of a window of 100 positions has the pages of 99.
TEST(KvWindowTest, APlanCountsTheSnapshotsOfItsWindows) {
  const ModelSpec spec = WindowModel(100);
  PlanRequest request{.context = 4096, .sequences = 2, .state_snapshots = 3, .prompt_tokens = 1000, .chunks = {128}};
  const absl::StatusOr<Plan> plan = WindowPlan(spec, request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->state_snapshots, 3);
  const Bytes of_layer = 2 * 3 * KvPagesFor(99) * plan->page_bytes;
  Bytes state = 0;
  for (const PlanDevice& device : plan->devices) state += device.memory.state;
  EXPECT_EQ(state, 3 * of_layer);
  EXPECT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec);
  EXPECT_EQ(*ParsePlan(ToJsonText(*plan), "plan"), *plan);
  Plan other = *plan;
  PlanMemory& memory = other.devices[static_cast<size_t>(other.stages.front().device)].memory;
  other.parts[0].state_bytes -= 64, memory.state -= 64, memory.margin += 64;
  EXPECT_THAT(std::string(other.Validate(spec).message()), HasSubstr("parts[0].state_bytes"));
  for (int64_t position = 16; position < 1000; position += 16) {
    const KvWindow window = WindowOf(*plan);
    ASSERT_LE(position / kPageTokens - window.FirstPage(position), SnapshotPages(window));
  }
  // No page is given back, so none needs a snapshot.
  request.context = 128, request.prompt_tokens = 0, request.chunks = {};
  const absl::StatusOr<Plan> few = WindowPlan(spec, request);
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_EQ(few->state_snapshots, 0);
  EXPECT_EQ(few->devices[0].memory.state, 0);
}

TEST(KvWindowTest, AShorterChunkNeedsFewerPages) {
  const absl::StatusOr<Plan> plan = WindowPlan(WindowModel(100), {.context = 4096, .prompt_tokens = 1000, .chunks = {1000, 64}}, 64 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(WindowOf(*plan).pages, WindowPages(100, OwnRows(*plan)));
}

TEST(KvWindowTest, InAShortContextNoPageIsGivenBack) {
  const auto plan_of = [](int64_t context) { return *WindowPlan(WindowModel(100), {.context = context, .sequences = 2}); };
  const int64_t most = WindowPages(100, 2);
  EXPECT_EQ(WindowOf(plan_of(16 * most)), KvWindow{});
  EXPECT_EQ(PagesOfLayerIn(plan_of(16 * most), 0), 2 * most);
  EXPECT_EQ(WindowOf(plan_of(16 * most + 1)).pages, most);
  EXPECT_EQ(PagesOfLayerIn(plan_of(16 * most + 1), 0), 2 * most);
}

TEST(KvWindowTest, AContextFitsThatWouldNotWithoutWindows) {
  const PlanRequest request{.context = 65536, .part_bytes = kMiB};
  constexpr Bytes kBudget = 170 * kMiB;
  EXPECT_FALSE(WindowPlan(WindowModel(512, /*full=*/4), request, kBudget).ok());
  const absl::StatusOr<Plan> plan = WindowPlan(WindowModel(512), request, kBudget);
  EXPECT_TRUE(plan.ok()) << plan.status();
}

TEST(KvWindowTest, KvGrowsInTheLayersThatKeepAll) {
  const ModelSpec spec = WindowModel(100);
  const absl::StatusOr<Plan> plan = WindowPlan(spec, {.context = 4096, .kv_tokens = 64, .sequences = 2, .part_bytes = kMiB}, 60 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(GrowsKv(*plan));
  const absl::StatusOr<Plan> grows = PlanToGrow(*plan);
  ASSERT_TRUE(grows.ok()) << grows.status();
  const KvLevels levels = MakeKvLevels(*grows);
  EXPECT_EQ(levels.exhausted, "");
  EXPECT_EQ(levels.levels.back().residency.layer_pages, 2 * 4096 / 16);
  for (const KvLevel& level : levels.levels) {
    const absl::StatusOr<Plan> then = WithResidency(*grows, level.residency);
    ASSERT_TRUE(then.ok()) << then.status();
    const int64_t pages = level.residency.layer_pages, window = std::min(pages, 2 * WindowPages(100, 1));
    for (const int32_t layer : {0, 1, 2}) EXPECT_EQ(PagesOfLayerIn(*then, layer), window);
    EXPECT_EQ(PagesOfLayerIn(*then, 3), pages);
    for (int d = 0; d < then->NumDevices(); ++d) EXPECT_EQ(then->devices[static_cast<size_t>(d)].kv_pages, PagesOn(*then, d, pages));
  }
}

TEST(KvWindowTest, IfAllLayersHaveAWindowKvGrowsUpToIt) {
  const PlanRequest request{.context = 4096, .kv_tokens = 64, .sequences = 2, .part_bytes = kMiB};
  const absl::StatusOr<Plan> plan = WindowPlan(WindowModel(100, /*full=*/0), request, 60 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(GrowsKv(*plan));
  EXPECT_EQ(FullLayerPages(*plan), 2 * WindowPages(100, 1));
}

TEST(KvWindowTest, PiecesThatMayLeaveKeepAllPages) {
  const ModelSpec spec = WindowModel(100);
  const PlanRequest request{.context = 4096, .kv_tokens = 2048, .state_snapshots = 1, .part_bytes = kMiB};
  const absl::StatusOr<Plan> plan = WindowPlan(spec, request, 60 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::StatusOr<Plan> cut = CutForKv(*plan, spec);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(WindowOf(*cut), KvWindow{});
  EXPECT_EQ(plan->state_snapshots, 1);
  EXPECT_EQ(cut->state_snapshots, 0) << "none is needed";
  for (const PlanPart& part : cut->parts) EXPECT_EQ(part.state_bytes, 0);
  for (const int32_t layer : {0, 1, 2, 3}) EXPECT_EQ(PagesOfLayerIn(*cut, layer), 2048 / 16);
}

// Else they would begin with the pages of a window, where memory has room for more.
TEST(KvWindowTest, APlanForKvThatLeavesBeginsWithAllItsKvIfAllLayersHaveAWindow) {
  const ModelSpec spec = WindowModel(100, /*full=*/0);
  PlanRequest request{.context = 4096, .kv_tokens = 2048, .part_bytes = kMiB};
  const auto first_pages = [&] {
    const absl::StatusOr<Plan> plan = WindowPlan(spec, request, 60 * kMiB);
    EXPECT_TRUE(plan.ok()) << plan.status();
    const absl::StatusOr<Plan> cut = CutForKv(*plan, spec);
    EXPECT_TRUE(cut.ok()) << cut.status();
    return ResidencyOf(*cut).layer_pages;
  };
  EXPECT_EQ(first_pages(), WindowPages(100, 1));
  request.keeps_all_pages = true;
  EXPECT_EQ(first_pages(), 2048 / kPageTokens);
}

TEST(KvWindowTest, WindowsThatDoNotFitThePlanAreRefused) {
  const ModelSpec spec = WindowModel(100);
  const Plan plan = *WindowPlan(spec, {.context = 4096, .prompt_tokens = 1000, .chunks = {128}});
  const auto refusal = [&](auto change) {
    Plan changed = plan;
    change(changed);
    return std::string(changed.Validate(spec).message());
  };
  const size_t second = static_cast<size_t>(PartsOf(plan, {BlockKind::kAttention, 1}).first);
  const size_t full = static_cast<size_t>(PartsOf(plan, {BlockKind::kAttention, 3}).first);
  EXPECT_EQ(refusal([](Plan&) {}), "");
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[second].window.pages -= 1; }), HasSubstr("window_pages\" = 16 is outside 17"));
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[second].window.positions -= 1; }), HasSubstr("another window than the parts before"));
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[second].window.positions = 0; }), HasSubstr("window_pages\" = 17 is outside 0 to 0"));
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[second + 1].window = p.parts[second].window; }),
              HasSubstr("window\" = 100 is outside 0 to 0"));
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[second].kv_pages += 1; }), HasSubstr("kv_pages\" = 18 is outside 0 to 17"));
  const Plan windows = *WindowPlan(WindowModel(100, /*full=*/0), {.context = 4096, .prompt_tokens = 1000, .chunks = {128}});
  EXPECT_THAT(refusal([&](Plan& p) { p = windows, p.model_key = plan.model_key; }),
              HasSubstr(absl::StrCat("parts[", full, "].window = 100, but attention 3 attends to all positions")));
  EXPECT_THAT(refusal([&](Plan& p) { p.retained_positions = 1024; }), HasSubstr("gives pages of KV back"));
  const auto with_state = [](Plan& p) {
    for (PlanPart& part : p.parts) {
      if (part.block == BlockId{BlockKind::kAttention, 3}) part.block.kind = BlockKind::kLinearAttention;
    }
  };
  EXPECT_THAT(refusal(with_state), HasSubstr("which a plan with linear attention does not support"));
}

}  // namespace
}  // namespace lime
