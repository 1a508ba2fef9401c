// Devices that share the head by ranges of the vocabulary give the tokens and logits of one that
// has all of it.

#include <algorithm>
#include <fstream>
#include <string>

#include "daemon/logic/head_partial.h"
#include "daemon/stage/plan_sampler.h"
#include "daemon/stores/block_store.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/problem/plan_problem.h"
#include "tests/integration/models.h"
#include "tests/integration/stage/stage_cluster.h"
#include "tests/integration/stage/stage_plans.h"
#include "tests/integration/variants.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocab = 5000;  // five ranges of kVocabRange, the last one shorter

class SplitHeadTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    MakeModelOptions options = OptionsOf({.name = "llama", .quantization = std::nullopt});
    options.config.vocab_size = kVocab;
    options.config.num_layers = 2;
    options.config.tie_embeddings = GetParam();
    ASSERT_TRUE(MakeModel(options, model_ / "model").ok());
    dir_ = model_ / "model";
    auto checkpoint = Checkpoint::Open(dir_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    auto spec = checkpoint->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *std::move(spec);
  }

  // The layers on device 0, and each range of the head where `head` says; those in `streamed`
  // stream.
  Plan PlanOf(int devices, const std::vector<int32_t>& head, const std::vector<int>& streamed = {}, int32_t sequences = 1,
              int32_t batch = 1) const {
    std::vector<ClusterDevice> cluster(static_cast<size_t>(devices));
    for (int d = 0; d < devices; ++d) {
      cluster[d] = {.name = std::string(1, static_cast<char>('a' + d)), .budget = 64 * kGiB};
      cluster[d].profile.read_bytes_per_second = 10e9;
      cluster[d].profile.flops = 1e11;
      cluster[d].profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
    }
    PlanRequest request{.context = kContext, .sequences = sequences, .batches = {batch}, .part_bytes = 64 * kKiB, .prompt_tokens = 32};
    request.chunks = {16};
    const auto problem = MakePlanProblem(spec_, cluster, request);
    EXPECT_TRUE(problem.ok()) << problem.status();
    const int parts = problem->instance.NumBlocks(), begin = parts - static_cast<int>(head.size());
    EXPECT_EQ(problem->instance.blocks[static_cast<size_t>(begin)].kind, Instance::Kind::kHead);
    EXPECT_TRUE(problem->instance.ContinuesBlock(begin + 1) && !problem->instance.ContinuesBlock(begin));
    PlanChoice choice{.stages = {.stages = {{0, 0, begin}}}, .microbatches = (sequences + batch - 1) / batch, .batch = batch};
    for (size_t i = 0; i < head.size(); ++i) {
      std::vector<Stage>& stages = choice.stages.stages;
      if (stages.back().device != head[i]) stages.push_back({head[i], stages.back().hi, stages.back().hi});
      ++stages.back().hi;
    }
    for (const int i : streamed) choice.stages.streamed.push_back(begin + i);
    choice.first_token = {.feasible = true, .ms = 1, .chunk_rows = 16, .chunks = 2, .chunks_per_sweep = 2};
    auto plan = MakePlan(*problem, choice);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *std::move(plan) : Plan{};
  }

  TempDir model_;
  std::string dir_;
  ModelSpec spec_;
};

INSTANTIATE_TEST_SUITE_P(Embedding, SplitHeadTest, ::testing::Bool(), [](const auto& info) { return info.param ? "Tied" : "Untied"; });

// At every boundary, on two to five devices, in and out of a device, resident and streamed.
TEST_P(SplitHeadTest, LogitsAreThoseOfOneDevice) {
  const std::vector<std::vector<int32_t>> heads = {{0, 1, 1, 1, 1}, {1, 1, 0, 0, 0}, {0, 0, 0, 1, 1}, {0, 0, 0, 0, 1}, {0, 1, 2, 3, 4},
                                                   {1, 0, 1, 2, 0}, {1, 2, 3, 4, 0}, {1, 1, 2, 2, 2}, {1, 0, 1, 0, 1}};
  std::vector<Reference> references(3);
  for (int s = 0; s < 3; ++s) references[s] = Alone(dir_, RandomIds(40 + s, 5 + 13 * s, kVocab));
  for (size_t i = 0; i < heads.size(); ++i) {
    const std::vector<int32_t>& head = heads[i];
    const int devices = 1 + *std::ranges::max_element(head);
    const int32_t sequences = 1 + static_cast<int32_t>(i % 3), batch = 1 + static_cast<int32_t>(i % 2);
    const std::vector<int> streamed = i % 3 == 0   ? std::vector<int>{}
                                      : i % 3 == 1 ? std::vector<int>{0, 2, 4}
                                                   : std::vector<int>{0, 1, 2, 3, 4};
    const Plan plan = PlanOf(devices, head, streamed, sequences, std::min(batch, sequences));
    SCOPED_TRACE(ToJsonText(plan));
    StageCluster cluster(dir_, plan, i, 1, i % 2 == 1 ? Delivery::kHostile : Delivery::kInOrder);
    ASSERT_TRUE(cluster.ok());
    OrderAll(cluster, plan, {references.begin(), references.begin() + sequences});
    for (int32_t s = 0; s < sequences; ++s) {
      ASSERT_EQ(cluster.Await(s, kNewTokens), references[static_cast<size_t>(s)].tokens);
      ASSERT_EQ(cluster.sampler().hash(s), references[static_cast<size_t>(s)].hash);
    }
    EXPECT_GT(cluster.head_partial_bytes(), kVocabRange * 4 * kNewTokens);  // all logits, since all are hashed
  }
}

void Flip(const std::string& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char flipped = static_cast<char>(file.get() ^ 16);
  file.seekp(offset);
  file.put(flipped);
}

// A block store knows checksums of its own pieces, and a plan cuts the head elsewhere. Streamed
// through a small ring, by one device and by two, each of its bytes is compared all the same,
// before anything is computed.
TEST_P(SplitHeadTest, ADamagedByteOfAStoresHeadIsRefused) {
  const std::string store = model_ / "store";
  ASSERT_TRUE(PrepareBlockStore(dir_, store).ok());
  const Reference reference = Alone(dir_, RandomIds(7, 9, kVocab));
  const auto checkpoint = Checkpoint::Open(store);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const TensorSpec* output = nullptr;
  for (const TensorSpec& tensor : spec_.block({BlockKind::kHead, 0}).tensors) {
    if (tensor.role == TensorRole::kOutput) output = &tensor;
  }
  ASSERT_NE(output, nullptr);
  const TensorLocation& at = checkpoint->location(output->name);
  const std::string& path = checkpoint->files()[static_cast<size_t>(at.file)].path;
  for (const std::vector<int32_t>& head : {std::vector<int32_t>{0, 0, 0, 0, 0}, {0, 0, 1, 1, 1}}) {
    Plan plan = PlanOf(1 + head.back(), head, {0, 1, 2, 3, 4});
    const std::vector<PlanNeed> needs = NeedsOf(plan);
    for (int d = 0; d < plan.NumDevices(); ++d) {
      PlanMemory& memory = plan.devices[d].memory;
      memory.margin += memory.ring - needs[d].ring, memory.ring = needs[d].ring;
    }
    SCOPED_TRACE(ToJsonText(plan));
    for (const int64_t byte : {int64_t{0}, at.bytes / 5, at.bytes - 1}) {
      const int32_t owner = byte < 2 * kVocabRange * (at.bytes / kVocab) ? 0 : head.back();
      Flip(path, at.offset + byte);
      const auto damaged = StageEngine::Install({{.weights = store, .plan = plan, .device = owner}});
      Flip(path, at.offset + byte);
      EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss) << byte << ": " << damaged.status();
      EXPECT_THAT(std::string(damaged.status().message()), HasSubstr(path + ": head, "));
      EXPECT_THAT(std::string(damaged.status().message()),
                  HasSubstr("differ from their checksum after 4 reads; remove the file and run `lime prepare` again"));
    }
    StageCluster cluster(store, plan, 1);
    ASSERT_TRUE(cluster.ok());
    OrderAll(cluster, plan, {reference});
    EXPECT_EQ(cluster.Await(0, kNewTokens), reference.tokens);
    EXPECT_EQ(cluster.sampler().hash(0), reference.hash);
  }
}

// Requests with options of their own, side by side in a batch.
TEST_P(SplitHeadTest, TokensAreThoseOfOneDeviceWhateverTheSampling) {
  const std::vector<SamplingParams> all = {{},
                                           {.temperature = 0.9, .top_k = 20, .seed = 3},
                                           {.temperature = 0.7, .top_k = 700, .top_p = 0.9, .min_p = 0.001, .seed = 4},
                                           {.temperature = 1.2, .seed = 5},
                                           {.temperature = 1, .top_p = 0.8, .seed = 6},
                                           {.repetition_penalty = 1.3},
                                           {.presence_penalty = 1, .frequency_penalty = -0.5, .logit_bias = {{7, 3}, {900, -100}}},
                                           {.repetition_penalty = 0.7, .temperature = 0.8, .top_k = 5, .min_p = 0.05, .seed = 8}};
  const auto make_sampler = [&all] {
    auto sampler = std::make_unique<PlanSampler>();
    for (size_t s = 0; s < all.size(); ++s) sampler->Expect(static_cast<int64_t>(s), {.params = all[s]});
    return sampler;
  };
  std::vector<Reference> prompts;
  for (size_t s = 0; s < all.size(); ++s) prompts.push_back({.prompt = RandomIds(60 + static_cast<uint32_t>(s), 4 + 3 * s, kVocab)});
  const int32_t sequences = static_cast<int32_t>(all.size());
  std::vector<std::vector<int32_t>> expected;
  for (const std::vector<int32_t>& head : {std::vector<int32_t>{0, 0, 0, 0, 0}, {0, 0, 1, 1, 1}, {1, 2, 0, 2, 0}, {0, 1, 2, 3, 4}}) {
    const Plan plan = PlanOf(1 + *std::ranges::max_element(head), head, {1, 3}, sequences, 4);
    SCOPED_TRACE(ToJsonText(plan));
    StageCluster cluster(dir_, plan, 9, 1, Delivery::kInOrder, make_sampler);
    ASSERT_TRUE(cluster.ok());
    OrderAll(cluster, plan, prompts);
    std::vector<std::vector<int32_t>> tokens(all.size());
    for (int32_t s = 0; s < sequences; ++s) tokens[s] = cluster.Await(s, kNewTokens);
    if (expected.empty()) expected = tokens;
    EXPECT_EQ(tokens, expected);
  }
}

TEST_P(SplitHeadTest, ATokenThatNeedsFewLogitsIsSentInAFewBytes) {
  const Reference reference = Alone(dir_, RandomIds(7, 9, kVocab));
  const Plan plan = PlanOf(3, {0, 0, 1, 1, 2});
  StageCluster cluster(dir_, plan, 1, 1, Delivery::kInOrder, [] { return std::make_unique<PlanSampler>(); });
  ASSERT_TRUE(cluster.ok());
  OrderAll(cluster, plan, {reference});
  EXPECT_EQ(cluster.Await(0, kNewTokens), reference.tokens);
  const int64_t row = 128 * 2, rows = 9 + kNewTokens - 1, logits = kNewTokens * (4 + 8 + 8);  // of the largest, and one that equals it
  EXPECT_LE(cluster.head_partial_bytes(), 2 * (rows * row + kNewTokens * 4 + logits));
}

TEST_P(SplitHeadTest, WhatIsNoPartOfTheHeadIsRefusedAndChangesNothing) {
  const Plan plan = PlanOf(2, {0, 0, 1, 1, 1});
  StageCluster cluster(dir_, plan, 1);
  ASSERT_TRUE(cluster.ok());
  const auto refusal = [&](std::vector<std::byte> payload, Payload kind = Payload::kHeadPartial) {
    const ActivationHeader header{.epoch = plan.epoch, .payload = kind, .bytes = std::ssize(payload)};
    return std::string(cluster.engine(1).OnActivation({header, std::move(payload)}).message());
  };
  const std::vector<std::byte> hidden(128 * 2);
  const std::vector<float> logits(2 * kVocab, 1.0f);
  const auto partial = [&](const std::vector<int64_t>& used, int64_t ids, size_t hidden_bytes) {
    return HeadPartialEncoder().Encode(logits, kVocab, ids, used, std::span(hidden).first(hidden_bytes));
  };
  EXPECT_THAT(refusal(hidden, Payload::kHidden), HasSubstr("this device expects no message"));
  EXPECT_THAT(refusal(hidden), HasSubstr("hidden states of 252 bytes"));  // behind logits of no row
  EXPECT_THAT(refusal(std::vector<std::byte>(1 << 20, std::byte{0xff})), HasSubstr("the limit is 1"));
  EXPECT_THAT(refusal(partial({1, 1}, 2048, 256)), HasSubstr("logits of 2 rows, the limit is 1"));
  EXPECT_THAT(refusal(partial({1}, 1024, 0)), HasSubstr("bytes early"));
  EXPECT_THAT(refusal(partial({1}, 2048, 255)), HasSubstr("hidden states of 255 bytes"));
  const Reference reference = Alone(dir_, RandomIds(7, 9, kVocab));
  OrderAll(cluster, plan, {reference});
  EXPECT_EQ(cluster.Await(0, kNewTokens), reference.tokens);
  EXPECT_EQ(cluster.sampler().hash(0), reference.hash);
}

TEST_P(SplitHeadTest, APlanWhoseMessagesAreTooLongIsRefused) {
  Plan plan = PlanOf(2, {0, 0, 1, 1, 1});
  plan.context = plan.prompt_tokens = plan.prefill_chunk = int64_t{1} << 20;
  plan.chunks_per_sweep = 1;
  const auto engine = StageEngine::Install({{.weights = dir_, .plan = plan, .device = 1}});
  ASSERT_FALSE(engine.ok());
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("splits the head at id 2048"));
}

}  // namespace
}  // namespace lime
