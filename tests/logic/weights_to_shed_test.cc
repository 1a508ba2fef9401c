#include "daemon/logic/weights_to_shed.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/model/described_model.h"
#include "planner/plan/plan_blocks.h"
#include "planner/problem/plan_problem.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kModel[] = R"({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4,
                              "intermediate_size": 512, "vocab_size": 2048, "max_position_embeddings": 512, "dtype": "bfloat16"})";

class WeightsToShedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto spec = DescribeModel(kModel, "tiny");
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *std::move(spec);
  }

  // All in memory, of one device, or of two: the second one begins with the block behind `first` of
  // them.
  Plan Make(int first = 0, std::vector<int32_t> streamed = {}) {
    std::vector<ClusterDevice> devices(first > 0 ? 2 : 1);
    for (size_t d = 0; d < devices.size(); ++d) {
      devices[d].name = std::string(1, static_cast<char>('a' + d));
      devices[d].budget = kGiB;
      devices[d].profile.read_bytes_per_second = 10e9;
      devices[d].profile.flops = 1e12;
      devices[d].profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
    }
    const auto problem = MakePlanProblem(spec_, devices, {.context = 64, .batches = {1}});
    EXPECT_TRUE(problem.ok()) << problem.status();
    const int blocks = problem->instance.NumBlocks();
    PlanChoice choice{.stages = {.stages = {{0, 0, blocks}}}, .batch = 1};
    if (first > 0) choice.stages.stages = {{0, 0, first}, {1, first, blocks}};
    choice.stages.streamed = std::move(streamed);
    auto plan = MakePlan(*problem, choice);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : Plan{};
  }

  static WeightsToShed::Options Options(const Plan& plan, int32_t device = 0, bool tied = false) {
    return {.device = device, .tied = tied, .rows_bytes = 1, .may_stream = std::vector<bool>(plan.parts.size(), true)};
  }

  ModelSpec spec_;
};

TEST_F(WeightsToShedTest, PartsOnDemandNeverGo) {
  Plan plan = Make();
  const auto [begin, end] = PartsOf(plan, {BlockKind::kMlp, 3});
  const Residency all = ResidencyOf(plan);
  const Bytes most = WeightsToShed(plan, Options(plan)).most();
  plan.parts[end - 1].places = 1, plan.parts[end - 1].unit_bytes = plan.parts[end - 1].bytes;
  const WeightsToShed shed(plan, Options(plan));
  EXPECT_EQ(shed.most(), most - plan.parts[end - 1].bytes);
  const std::vector<int32_t> streamed = shed.Choose(all, most, false).streamed;
  EXPECT_EQ(std::ranges::count(streamed, end - 1), 0);
  EXPECT_EQ(std::ranges::count(streamed, begin), begin + 1 < end ? 1 : 0);
}

TEST_F(WeightsToShedTest, BlocksGoFromTheHighestLayerDownThenTheHeadThenTheEmbedding) {
  const Plan plan = Make();
  const WeightsToShed shed(plan, Options(plan));
  const Residency all = ResidencyOf(plan);
  Bytes largest = 0;
  for (const PlanPart& part : plan.parts) largest = std::max(largest, part.bytes);
  EXPECT_EQ(shed.ring_to_make(), 2 * largest);
  EXPECT_THAT(shed.Choose(all, 0, false).streamed, IsEmpty());
  const auto last_mlp = PartsOf(plan, {BlockKind::kMlp, 3}), last_attention = PartsOf(plan, {BlockKind::kAttention, 3});
  const WeightsToShed::Choice little = shed.Choose(all, 1, false);
  EXPECT_GE(little.bytes, 1);
  EXPECT_EQ(little.streamed.back(), last_mlp.second - 1);
  EXPECT_FALSE(little.embedding);
  size_t before = 0;
  for (Bytes bytes = 1; bytes < shed.most(); bytes += shed.most() / 37) {
    const WeightsToShed::Choice choice = shed.Choose(all, bytes, false);
    EXPECT_GE(choice.bytes, bytes);
    EXPECT_GE(choice.streamed.size(), before) << "more bytes, no fewer parts";
    before = choice.streamed.size();
    if (std::ranges::find(choice.streamed, last_attention.first) == choice.streamed.end()) {
      EXPECT_EQ(choice.streamed.size(), static_cast<size_t>(last_mlp.second - last_mlp.first));
    }
  }
  const WeightsToShed::Choice most = shed.Choose(all, INT64_MAX, false);
  EXPECT_EQ(static_cast<int>(most.streamed.size()), plan.NumParts());
  EXPECT_TRUE(most.embedding);
  EXPECT_EQ(most.bytes, shed.most());
  const WeightsToShed::Choice again = shed.Choose(all, INT64_MAX, true);
  EXPECT_TRUE(again.embedding);
  EXPECT_EQ(again.bytes, shed.most() - plan.embedding_bytes);
}

TEST_F(WeightsToShedTest, ATiedEmbeddingGoesWithTheHeadAndNotWithoutIt) {
  const Plan plan = Make();
  const WeightsToShed shed(plan, Options(plan, 0, /*tied=*/true));
  const int head = PartsOf(plan, {BlockKind::kHead, 0}).first;
  for (Bytes bytes = 1; bytes < shed.most(); bytes += shed.most() / 37) {
    const WeightsToShed::Choice choice = shed.Choose(ResidencyOf(plan), bytes, false);
    EXPECT_EQ(choice.embedding, std::ranges::find(choice.streamed, head) != choice.streamed.end());
  }
  WeightsToShed::Options options = Options(plan, 0, /*tied=*/true);
  options.embedding = false;
  const WeightsToShed::Choice most = WeightsToShed(plan, options).Choose(ResidencyOf(plan), INT64_MAX, false);
  EXPECT_FALSE(most.embedding);
  EXPECT_EQ(std::ranges::find(most.streamed, head), most.streamed.end());
}

TEST_F(WeightsToShedTest, ADeviceShedsItsOwnBlocksOnly) {
  const Plan plan = Make(/*first=*/6, {0, 8});
  const WeightsToShed second(plan, Options(plan, 1));
  EXPECT_EQ(second.ring_to_make(), 0) << "the plan's ring does";
  const WeightsToShed::Choice most = second.Choose(ResidencyOf(plan), INT64_MAX, false);
  EXPECT_FALSE(most.embedding) << "which the first device has";
  EXPECT_EQ(most.streamed.front(), 0) << "of the first device";
  EXPECT_EQ(static_cast<int>(most.streamed.size()), 1 + plan.NumParts() - 6);
  EXPECT_THAT(second.Choose(ResidencyOf(plan), 0, false).streamed, ElementsAre(0, 8));
}

TEST_F(WeightsToShedTest, WhereMicroBatchesShareWhatIsReadNoRingIsMade) {
  Plan plan = Make();
  plan.sequences = 2, plan.microbatches = 2;
  const WeightsToShed shed(plan, Options(plan));
  EXPECT_EQ(shed.most(), 0);
  EXPECT_EQ(shed.ring_to_make(), 0);
  EXPECT_THAT(shed.Choose(ResidencyOf(plan), INT64_MAX, false).streamed, IsEmpty());
}

}  // namespace
}  // namespace lime
