#include "planner/problem/plan_problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "planner/batches.h"
#include "planner/evaluation/lower_bound.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/kv_spill.h"
#include "planner/sim/simulator.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

SearchOptions Quick() {
  return {.granularity = Granularity::kModelBlock, .time_limit_ms = 50, .max_work = 2e4, .exhaustive = false};
}

// Problem to plan by the search.
absl::StatusOr<Plan> PlanFor(const PlanProblem& problem) {
  LIME_ASSIGN_OR_RETURN(const BatchedPlan best, PlanBatches(Strategy::kLime, problem.instance, Quick()));
  if (!best.found.feasible) return absl::ResourceExhaustedError(best.found.reason);
  PlanChoice choice = {.stages = best.found.plan, .batch = best.batch, .lower_bound_ms = best.lower_bound_ms};
  if (problem.first_token) choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(choice.stages);
  return MakePlan(problem, choice);
}

TEST(PlanProblemTest, PlansOfModelsAreValidForThemAndRunAsPredicted) {
  const std::string configs[] = {LlamaConfig(4, 1024, 4096, 8000), LlamaConfig(3, 512, 1536, 1000, /*tied=*/true),
                                 LlamaConfig(2, 2048, 2048, 50000), HybridConfig(4, 1024, 4096, 8000)};
  for (const std::string& config : configs) {
    const absl::StatusOr<ModelSpec> spec = DescribeModel(config, "config.json");
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    const Bytes share = spec->WeightBytes() / 4 + 20 * kMiB;  // three of them hold three quarters
    const std::vector<ClusterDevice> devices = {Board("a", share, 20e9), Board("b", share), Board("c", share, 10e9, 2e9)};
    for (const Bytes part_bytes : {Bytes{0}, 2 * kMiB, 16 * kMiB}) {
      for (const int32_t sequences : {1, 3}) {
        SCOPED_TRACE(absl::StrCat(config, " pieces ", part_bytes, " sequences ", sequences));
        const absl::StatusOr<PlanProblem> problem = MakePlanProblem(
            *spec, devices, {.context = 500, .sequences = sequences, .part_bytes = part_bytes, .prompt_tokens = 300, .chunks = {50, 128}});
        ASSERT_TRUE(problem.ok()) << problem.status().message();
        const absl::StatusOr<Plan> plan = PlanFor(*problem);
        if (part_bytes == 0 && !plan.ok()) continue;  // whole blocks may be too large for these devices
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        EXPECT_TRUE(plan->Validate(*spec).ok()) << plan->Validate(*spec).message();
        const absl::StatusOr<SimulationResult> decode = SimulateDecode(*plan), prefill = SimulatePrefill(*plan);
        ASSERT_TRUE(decode.ok() && prefill.ok()) << decode.status().message() << prefill.status().message();
        EXPECT_EQ(decode->MsPerStep(), plan->predicted.ms_per_step) << ToJsonText(*plan);
        EXPECT_EQ(prefill->step_ends_ms.back(), plan->predicted.ttft_ms) << ToJsonText(*plan);
        EXPECT_EQ(plan->predicted.ms_per_token, plan->predicted.ms_per_step / sequences);
      }
    }
  }
}

TEST(PlanProblemTest, MemoryIsExactToTheByte) {
  const ModelSpec spec = SmallModel();
  ClusterDevice device = Board("a", 1000 * kMiB);
  const PlanRequest request = {.context = 100, .sequences = 2};
  const auto resident_fits = [&](Bytes budget) {
    device.budget = budget;
    const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, {&device, 1}, request);
    EXPECT_TRUE(problem.ok()) << problem.status().message();
    const absl::StatusOr<Plan> plan = MakePlan(*problem, {.stages = {.stages = {{0, 0, problem->instance.NumBlocks()}}}});
    EXPECT_TRUE(plan.ok() || plan.status().code() == absl::StatusCode::kResourceExhausted) << plan.status().message();
    return plan.ok();
  };
  const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, {&device, 1}, request);
  ASSERT_TRUE(problem.ok());
  const absl::StatusOr<Plan> roomy = MakePlan(*problem, {.stages = {.stages = {{0, 0, problem->instance.NumBlocks()}}}});
  ASSERT_TRUE(roomy.ok()) << roomy.status().message();
  const PlanMemory& memory = roomy->devices[0].memory;
  EXPECT_EQ(memory.kv, 4 * 2 * 7 * roomy->page_bytes) << "4 layers, 2 sequences of 7 pages for 100 positions";
  EXPECT_EQ(memory.total(), device.budget);
  const Bytes least = device.budget - memory.margin + device.margin;
  EXPECT_TRUE(resident_fits(least));
  EXPECT_FALSE(resident_fits(least - 1));
}

// The first device has the attention of layer 0, the second one that of layers 1 to 3.
TEST(PlanProblemTest, AStateCountsForEverySequenceWhereItsLayerIs) {
  const ModelSpec spec = SmallHybrid();
  const std::vector<ClusterDevice> devices = {Board("a", 200 * kMiB), Board("b", 200 * kMiB)};
  const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, devices, {.context = 100, .sequences = 2, .batches = {2}});
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const std::vector<PlanPart>& parts = problem->head.parts;
  const auto cut = static_cast<int32_t>(std::ranges::find(parts, BlockId{BlockKind::kMlp, 0}, &PlanPart::block) - parts.begin());
  const int32_t end = problem->instance.NumBlocks();
  const absl::StatusOr<Plan> plan = MakePlan(*problem, {.stages = {.stages = {{0, 0, cut}, {1, cut, end}}}, .batch = 2});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec).message();
  const PlanMemory &a = plan->devices[0].memory, &b = plan->devices[1].memory;
  EXPECT_EQ(a.state, 2 * spec.StateBytes(0));
  EXPECT_EQ(b.state, 2 * (spec.StateBytes(1) + spec.StateBytes(2)));
  EXPECT_EQ(a.kv, 0) << "layer 0 has no KV";
  EXPECT_EQ(b.kv, 2 * 7 * spec.KvPageBytes()) << "layer 3 alone: 2 sequences of 7 pages";
  EXPECT_EQ(a.total(), devices[0].budget);
  Plan other = *plan;
  other.parts[0].state_bytes -= 64, other.devices[0].memory.state -= 64, other.devices[0].memory.margin += 64;
  EXPECT_THAT(std::string(other.Validate(spec).message()), HasSubstr("parts[0].state_bytes"));
  const absl::StatusOr<Plan> read = ParsePlan(ToJsonText(*plan), "plan.json");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, *plan);
}

TEST(PlanProblemTest, SnapshotsCountAsStatesDo) {
  const ModelSpec spec = SmallHybrid();
  const std::vector<ClusterDevice> devices = {Board("a", 200 * kMiB)};
  PlanRequest request{.context = 100, .sequences = 2, .state_snapshots = 3, .batches = {2}};
  const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, devices, request);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const absl::StatusOr<Plan> plan = MakePlan(*problem, {.stages = {.stages = {{0, 0, problem->instance.NumBlocks()}}}, .batch = 2});
  ASSERT_TRUE(plan.ok() && plan->Validate(spec).ok()) << plan.status().message();
  EXPECT_EQ(plan->state_snapshots, 3);
  EXPECT_EQ(plan->devices[0].memory.state, 2 * (1 + 3) * (spec.StateBytes(0) + spec.StateBytes(1) + spec.StateBytes(2)));
  EXPECT_EQ(SharedKvUnit(*plan), kPageTokens);
  EXPECT_EQ(ParsePlan(ToJsonText(*plan), "plan.json").value(), *plan);
  Plan other = *plan;
  other.state_snapshots = 2;
  EXPECT_THAT(std::string(other.Validate(spec).message()), HasSubstr("with 2 snapshots of each"));
  other.state_snapshots = kMaxStateSnapshots + 1;
  EXPECT_THAT(std::string(other.Validate().message()), HasSubstr("state_snapshots"));
  other.state_snapshots = 0;
  EXPECT_EQ(SharedKvUnit(other), 0) << "no snapshot, no sharing";
  request.state_snapshots = -1;
  EXPECT_THAT(std::string(MakePlanProblem(spec, devices, request).status().message()), HasSubstr("state_snapshots"));
  request.state_snapshots = 3;
  const ModelSpec without = SmallModel();
  EXPECT_EQ(MakePlanProblem(without, devices, request)->head.state_snapshots, 0) << "it keeps no state";
}

TEST(PlanProblemTest, TheSlowestLinkCountsAndThenTheSlowestInUse) {
  const ModelSpec spec = SmallModel();
  std::vector<ClusterDevice> devices = {Board("a", 60 * kMiB), Board("b", 60 * kMiB), Board("c", 60 * kMiB)};
  devices[0].profile.links = {{.peer = "b", .bytes_per_second = 1e8, .latency_ms = 0.1},
                              {.peer = "c", .bytes_per_second = 1e6, .latency_ms = 5}};
  devices[1].profile.links = {{.peer = "c", .bytes_per_second = 1e8, .latency_ms = 0.2}};
  const PlanRequest request = {.prompt_tokens = 64, .chunks = {32}};
  absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, devices, request);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_DOUBLE_EQ(problem->instance.net.tx_ms, 2.048) << "2,048 bytes of hidden state at 1 MB/s";
  EXPECT_EQ(problem->instance.net.lat_ms, 5);
  EXPECT_DOUBLE_EQ(problem->first_token->chunks[0].instance.net.tx_ms, 32 * 2.048);
  const int blocks = problem->instance.NumBlocks();
  RefineNet(devices, spec, request, {.stages = {{0, 0, 2}, {1, 2, 4}, {0, 4, blocks}}}, *problem);
  EXPECT_DOUBLE_EQ(problem->instance.net.tx_ms, 0.02048);
  EXPECT_EQ(problem->instance.net.lat_ms, 0.1);
  EXPECT_DOUBLE_EQ(problem->first_token->chunks[0].instance.net.tx_ms, 32 * 0.02048);
}

TEST(PlanProblemTest, TheHeadIsCutOnRangesOfTheVocabulary) {
  const ModelSpec spec = SmallModel();  // 8,000 ids of 2 KiB
  const std::vector<ClusterDevice> devices = {Board("a", 60 * kMiB)};
  const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, devices, {.part_bytes = 5 * kMiB});
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  std::vector<int64_t> ends;
  for (const PlanPart& part : problem->head.parts) {
    if (part.block.kind == BlockKind::kHead) ends.push_back(HeadRange(part).end);
  }
  EXPECT_THAT(ends, ::testing::ElementsAre(2048, 4096, 6144, 8000));
}

TEST(PlanProblemTest, ALargeHeadIsSplitByVocabularyWhereThatPays) {
  const absl::StatusOr<ModelSpec> spec = DescribeModel(LlamaConfig(/*layers=*/2, /*hidden=*/1024, /*inner=*/1024, /*vocab=*/65536), "wide");
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const std::vector<ClusterDevice> devices = {Board("a", 110 * kMiB), Board("b", 110 * kMiB)};  // the head is 128 MiB
  const absl::StatusOr<PlanProblem> problem = MakePlanProblem(*spec, devices, {.part_bytes = 8 * kMiB});
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const absl::StatusOr<Plan> plan = PlanFor(*problem);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_TRUE(plan->Validate(*spec).ok()) << plan->Validate(*spec).message();
  EXPECT_EQ(plan->embedding, EmbeddingPlacement::kByRows);
  std::set<int32_t> heads_devices;
  for (const Stage& stage : plan->stages) {
    for (int32_t part = stage.lo; part < stage.hi; ++part) {
      if (plan->parts[part].block.kind == BlockKind::kHead) heads_devices.insert(stage.device);
    }
  }
  EXPECT_EQ(heads_devices.size(), 2u) << ToJsonText(*plan);
  EXPECT_LE(plan->predicted.ms_per_step, 1.01 * LowerBoundMs(problem->instance)) << ToJsonText(*plan);
}

// Room for the weights, and not for the table a second time.
TEST(PlanProblemTest, ATiedEmbeddingIsCountedOnceWhereAllOfTheHeadStays) {
  const ModelSpec spec = *DescribeModel(LlamaConfig(/*layers=*/3, /*hidden=*/512, /*inner=*/1536, /*vocab=*/20000, /*tied=*/true), "tied");
  const std::vector<ClusterDevice> devices = {
      Board("a", spec.WeightBytes() + 24 * kMiB - spec.block({BlockKind::kEmbedding, 0}).bytes / 2)};
  const PlanRequest request = {.context = 100, .embedding_with_head = true, .prompt_tokens = 64, .chunks = {32}};
  const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, devices, request);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const absl::StatusOr<Plan> plan = PlanFor(*problem);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->embedding, EmbeddingPlacement::kWithHead) << ToJsonText(*plan);
  EXPECT_TRUE(std::ranges::none_of(plan->parts, &PlanPart::streamed)) << ToJsonText(*plan);
  EXPECT_EQ(plan->devices[0].memory.embedding, 0);
  EXPECT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec).message();
  const absl::StatusOr<SimulationResult> decode = SimulateDecode(*plan), prefill = SimulatePrefill(*plan);
  ASSERT_TRUE(decode.ok() && prefill.ok());
  EXPECT_EQ(decode->MsPerStep(), plan->predicted.ms_per_step);
  EXPECT_EQ(prefill->step_ends_ms.back(), plan->predicted.ttft_ms);
  // Where parts of it stream, or KV grows and they may come to, the table is read by rows or has
  // memory of its own.
  StagePlan stages{.stages = {{0, 0, plan->NumParts()}}, .embedding_by_rows = true};
  EXPECT_TRUE(EmbeddingIsWithHead(*problem, stages));
  stages.streamed = {plan->NumParts() - 1};
  EXPECT_FALSE(EmbeddingIsWithHead(*problem, stages));
  PlanRequest grows = request;
  grows.kv_tokens = 32;
  EXPECT_FALSE(EmbeddingIsWithHead(*MakePlanProblem(spec, devices, grows), {.stages = {{0, 0, plan->NumParts()}}}));
  const ModelSpec untied = *DescribeModel(LlamaConfig(3, 512, 1536, 20000), "untied");
  EXPECT_FALSE(EmbeddingIsWithHead(*MakePlanProblem(untied, devices, request), {.stages = {{0, 0, plan->NumParts()}}}));
  EXPECT_FALSE(plan->Validate(untied).ok());
}

TEST(PlanProblemTest, AttentionIsPredictedForThePositionsThatAreExpected) {
  const ModelSpec spec = SmallModel();
  const std::vector<ClusterDevice> devices = {Board("a", 500 * kMiB)};
  const auto ms = [&](int64_t context, int64_t expected) {
    const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, devices, {.context = context, .expected_positions = expected});
    EXPECT_TRUE(problem.ok()) << problem.status().message();
    return problem->instance.devices[0].comp_ms;
  };
  EXPECT_EQ(ms(4000, 100), ms(100, 0));
  EXPECT_EQ(ms(4000, 0), ms(4000, 4000));
  EXPECT_NE(ms(4000, 100), ms(4000, 0));
  EXPECT_FALSE(MakePlanProblem(spec, devices, {.context = 100, .expected_positions = 101}).ok());
}

TEST(PlanProblemTest, ADeviceTooSmallForAnythingIsLeftOut) {
  const ModelSpec spec = SmallModel();
  const std::vector<ClusterDevice> devices = {Board("tiny", kMiB), Board("b", 80 * kMiB)};
  const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, devices, {.part_bytes = 4 * kMiB});
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const absl::StatusOr<Plan> plan = PlanFor(*problem);
  // What a device's runtime takes beyond its budget is no plan's to divide.
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (plan.ok()) {
    for (const Stage& stage : plan->stages) EXPECT_EQ(stage.device, 1);
  }
}

TEST(PlanProblemTest, WhatIsOutOfBoundsIsASentence) {
  const ModelSpec spec = SmallModel();
  const std::vector<ClusterDevice> one = {Board("a", 60 * kMiB)};
  const auto error = [&](std::vector<ClusterDevice> devices, const PlanRequest& request) {
    return std::string(MakePlanProblem(spec, devices, request).status().message());
  };
  EXPECT_THAT(error({}, {}), HasSubstr("the number of devices = 0"));
  EXPECT_THAT(error({one[0], one[0]}, {}), HasSubstr("device \"a\": is listed twice"));
  EXPECT_THAT(error({Board("", kMiB)}, {}), HasSubstr("give a name"));
  EXPECT_THAT(error({Board("a", -1)}, {}), HasSubstr("device \"a\": budget = -1"));
  EXPECT_THAT(error(one, {.context = 0}), HasSubstr("context = 0"));
  EXPECT_THAT(error(one, {.sequences = 0}), HasSubstr("sequences = 0"));
  EXPECT_THAT(error(one, {.sequences = 2, .batches = {3}}), HasSubstr("a batch = 3"));
  EXPECT_THAT(error(one, {.context = 10, .prompt_tokens = 11}), HasSubstr("prompt_tokens = 11"));
  EXPECT_THAT(error(one, {.prompt_tokens = 9, .chunks = {}}), HasSubstr("needs at least one chunk length"));
  EXPECT_THAT(error(one, {.default_link = {.bytes_per_second = 0}}), HasSubstr("a default link cannot have 0"));
  const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec, one, {});
  ASSERT_TRUE(problem.ok());
  EXPECT_THAT(std::string(MakePlan(*problem, {.stages = {.stages = {{0, 0, 1}}}}).status().message()), HasSubstr("cover all blocks"));
  EXPECT_THAT(std::string(MakePlan(*problem, {.batch = 2}).status().message()), HasSubstr("micro-batches of 2 were not among the choices"));
}

}  // namespace
}  // namespace lime
