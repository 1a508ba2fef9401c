// Plans that keep the KV of few positions and compute the others again in every step: the bits are
// those of one engine that has all of it.

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planning/cluster_planning.h"
#include "coordinator/planning/plan_inputs.h"
#include "daemon/engine/baselines/sliced_visit.h"
#include "daemon/logic/stage_inbox.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/registry/registry.h"
#include "planner/plan/baselines/eviction.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/plan_blocks.h"
#include "tests/cases.h"
#include "tests/integration/models.h"
#include "tests/integration/stage/stage_cluster.h"
#include "tests/integration/stage/stage_orders.h"
#include "tests/integration/stage/stage_plans.h"
#include "tests/integration/variants.h"
#include "tests/skips.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

ModelSpec SpecOf(const std::string& dir) {
  const auto checkpoint = Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  auto spec = checkpoint->BuildModelSpec();
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *std::move(spec);
}

// Of a model with so many positions, from 32 of them on evicted.
void ExpectBitsOfOne(const std::string& dir, int seeds, int64_t context, int32_t vocab) {
  const ModelSpec spec = SpecOf(dir);
  const int64_t prompt = context - kNewTokens;
  std::vector<Reference> references(3);
  for (int s = 0; s < 3; ++s)
    references[s] = Alone(dir, RandomIds(40 + s, static_cast<int>(prompt - prompt / 3 * s), vocab), kNewTokens, context);
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(seeds); ++seed) {
    const Plan plan = RandomPlan(spec, seed, {.context = context, .prompt = prompt, .evicts = true}).Draw();
    ASSERT_FALSE(plan.parts.empty()) << "seed " << seed;
    ASSERT_GT(MostEvicted(plan), 0);
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(plan)));
    StageCluster cluster(dir, plan, seed);
    ASSERT_TRUE(cluster.ok());
    const std::vector<Reference> requests(references.begin(), references.begin() + plan.sequences);
    for (int32_t s = 0; s < plan.sequences; ++s) OrderPrompt(cluster, plan, s, requests[s], context);
    for (int i = 0; i + 1 < kNewTokens; ++i) OrderToken(cluster, plan, requests, i);
    for (int32_t s = 0; s < plan.sequences; ++s) {
      ASSERT_EQ(cluster.Await(s, kNewTokens), requests[s].tokens);
      ASSERT_EQ(cluster.sampler().hash(s), requests[s].hash);
    }
  }
}

class StageEvictionBitsTest : public ::testing::TestWithParam<Variant> {};

TEST_P(StageEvictionBitsTest, WhatIsComputedAgainHasTheSameBits) {
  const MakeModelOptions options = OptionsOf(GetParam());
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ExpectBitsOfOne(dir / "model", Cases(3, 12), kContext, static_cast<int32_t>(std::min<int64_t>(200, options.config.vocab_size)));
}

// Layers with a state take every position once. Models with parallel halves are refused.
std::vector<Variant> EvictableVariants() {
  std::vector<Variant> variants = SpreadVariants();
  std::erase_if(variants, [](const Variant& variant) { return HasState(variant) || variant.family == "falcon"; });
  return variants;
}

INSTANTIATE_TEST_SUITE_P(Families, StageEvictionBitsTest, ::testing::ValuesIn(EvictableVariants()),
                         [](const auto& info) { return info.param.name; });

// More positions are evicted than are computed at a time, and than attention takes together.
TEST(StageEvictionTest, TheShippedModelHasTheSameBitsInManySlices) {
  ExpectBitsOfOne(ShippedModel("lime-fables"), Cases(2, 8), 480, 512);
}

TEST(StageEvictionTest, SharedModelsHaveTheSameBits) {
  LIME_SKIP_WITHOUT_SHARED(SharedDir() / "models");
  for (const std::string& name : SharedModels()) {
    SCOPED_TRACE(name);
    ExpectBitsOfOne(SharedModel(name), Cases(1, 4), kContext, 200);
  }
}

// So many that own rows skip over whole pieces of attention.
TEST(StageEvictionTest, ALongContextHasTheSameBits) {
  MakeModelOptions options;
  options.config.max_positions = 1200;
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ExpectBitsOfOne(dir / "model", Cases(1, 4), 1100, 200);
}

// Two sequences in one micro-batch: the second one's prompt comes while the first decodes.
TEST(StageEvictionTest, APromptBesideATokenHasTheSameBits) {
  const std::string dir = ShippedModel("lime-fables");
  Plan plan;
  for (uint64_t seed = 1; plan.NumDevices() < 2 || plan.batch != 2 || plan.retained_positions != 32 || plan.prefill_chunk < 6; ++seed)
    plan = RandomPlan(SpecOf(dir), seed, {.prompt = 64, .evicts = true}).Draw();
  const Reference first = Alone(dir, RandomIds(1, 60, 512), 30), second = Alone(dir, RandomIds(2, 70, 512));
  StageCluster cluster(dir, plan, 3);
  ASSERT_TRUE(cluster.ok());
  OrderPrompt(cluster, plan, 0, first, kContext);
  cluster.SendOrder(AdmitOrder{.sequence = 1, .request = 1, .positions = kContext, .prompt = second.prompt});
  const auto rows = [](int32_t sequence, int32_t position, int32_t token, bool wants_logits) {
    return BatchRow{.sequence = sequence, .token = token, .position = position, .wants_logits = wants_logits};
  };
  const auto chunk = static_cast<int32_t>(std::max<int64_t>(1, plan.prefill_chunk - 1));
  int32_t at = 0, tokens = 0;
  for (int32_t step = 0; step < 29; ++step) {
    MicroBatch batch{{rows(0, 60 + step, kSampledToken, true)}};
    for (int32_t i = 0; i < chunk && at < 70; ++i, ++at)
      batch.rows.push_back(rows(1, at, second.prompt[static_cast<size_t>(at)], at == 69));
    if (batch.rows.size() == 1 && tokens + 1 < kNewTokens) batch.rows.push_back(rows(1, 70 + tokens++, kSampledToken, true));
    cluster.SendOrder(StepOrder{{std::move(batch)}});
  }
  EXPECT_EQ(cluster.Await(0, 30), first.tokens);
  EXPECT_EQ(cluster.sampler().hash(0), first.hash);
  const std::vector<int32_t> of_second = cluster.Await(1, static_cast<size_t>(at == 70 ? 1 + tokens : 0));
  EXPECT_TRUE(std::ranges::equal(of_second, std::span(second.tokens).first(of_second.size())));
  EXPECT_GE(of_second.size(), 1u);
}

// A slot's next sequence has all its pages, and its own tokens.
TEST(StageEvictionTest, ASlotAdmitsOneSequenceAfterAnother) {
  const std::string dir = ShippedModel("lime-fables");
  Plan plan;
  for (uint64_t seed = 1; plan.NumDevices() != 2 || plan.sequences != 1 || plan.retained_positions != 32; ++seed)
    plan = RandomPlan(SpecOf(dir), seed, {.prompt = 48, .evicts = true}).Draw();
  StageCluster cluster(dir, plan, 1);
  ASSERT_TRUE(cluster.ok());
  std::vector<int32_t> expected;
  uint64_t hash = 0;
  for (int i = 0; i < 4; ++i) {
    const Reference reference = Alone(dir, RandomIds(70 + i, i % 2 == 0 ? 50 : 82, 512));
    OrderPrompt(cluster, plan, 0, reference, kContext);
    for (int token = 0; token + 1 < kNewTokens; ++token) OrderToken(cluster, plan, {reference}, token);
    expected.insert(expected.end(), reference.tokens.begin(), reference.tokens.end());
    hash = reference.hash;
    ASSERT_EQ(cluster.Await(0, expected.size()), expected);
    cluster.AwaitSteps();
    cluster.SendOrder(RetireOrder{});
  }
  EXPECT_EQ(cluster.sampler().hash(0), hash);
  EXPECT_THAT(std::string(cluster.engine(0).HandOver().status().message()), HasSubstr("evicts"));
}

// As `lime plan` makes it, of devices whose memory ends short of all KV: what it says of
// activations is enough for what a device allocates.
TEST(StageEvictionTest, APlanOfThePlannersIsInstalledWithinItsBudgets) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps memory that the process has given back";
  MakeModelOptions options;
  options.config.num_layers = 32, options.config.num_kv_heads = 4, options.config.max_positions = 1024;
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  Plan plan;
  for (Bytes budget = 240 * kMiB; plan.retained_positions == 0; budget -= 256 * kKiB) {
    const std::string device = absl::StrCat(R"(", "memory_bytes": )", budget, R"(, "read_bytes_per_second": 1e10})");
    dir.Write("devices.json", absl::StrCat(R"({"link": {"bandwidth": "1Gbit/s", "latency_ms": 0.1}, "devices": [{"name": "a)", device,
                                           R"(, {"name": "b)", device, "]}"));
    PlanInputFlags flags;
    flags.model = dir / "model", flags.device_profiles = dir / "devices.json", flags.tokens = 1024, flags.prompt_tokens = 64;
    auto inputs = ReadPlanInputs(flags);
    ASSERT_TRUE(inputs.ok()) << inputs.status();
    auto planned = ClusterPlanning({.strategy = Strategy::kPp}, *std::move(inputs)).Run();
    ASSERT_TRUE(planned.ok()) << planned.status() << " before any KV was evicted";
    plan = *std::move(planned);
  }
  ASSERT_EQ(plan.stages.size(), 2u) << ToJsonText(plan);
  const ModelSpec spec = SpecOf(dir / "model");
  const Bytes row = spec.config.hidden_size * ElementBytes(spec.working_dtype);
  for (int32_t d = 0; d < 2; ++d) {
    const BackendOptions backend{.num_threads = 1,
                                 .max_rows = MaxRows(plan),
                                 .max_logit_rows = HasHead(plan, d) ? plan.batch : 0,
                                 .max_sequences = plan.sequences,
                                 .context = plan.context,
                                 .num_kv_pages = plan.devices[d].kv_pages};
    const auto activations = PlanActivationBytes(kCpuBackend, spec, backend);
    ASSERT_TRUE(activations.ok()) << activations.status();
    EXPECT_GE(plan.devices[d].memory.activations, *activations + StageInbox::WaitingBytes(plan, d, row) + SlicedVisit::BytesFor(plan, row));
  }
  const Reference request = Alone(dir / "model", RandomIds(5, 1000, 200), kNewTokens, 1024);
  StageCluster cluster(dir / "model", plan, 1);
  ASSERT_TRUE(cluster.ok());
  OrderPrompt(cluster, plan, 0, request, 1024);
  for (int token = 0; token + 1 < kNewTokens; ++token) OrderToken(cluster, plan, {request}, token);
  EXPECT_EQ(cluster.Await(0, kNewTokens), request.tokens);
  EXPECT_EQ(cluster.sampler().hash(0), request.hash);
}

TEST(StageEvictionTest, RowsThatDoNotFollowOneAnotherAreRefused) {
  const std::string dir = ShippedModel("lime-fables");
  Plan plan;
  for (uint64_t seed = 1; plan.sequences != 3 || plan.batch != 2 || plan.prefill_chunk < 3; ++seed)
    plan = RandomPlan(SpecOf(dir), seed, {.prompt = 64, .evicts = true}).Draw();
  StageCluster cluster(dir, plan, 1);
  ASSERT_TRUE(cluster.ok());
  const auto refusal = [&](std::vector<BatchRow> rows) {
    const absl::Status status = cluster.engine(0).OnOrder({0, StepOrder{{MicroBatch{std::move(rows)}}}});
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({{.sequence = 0, .position = 1}, {.sequence = 0, .position = 3}}), HasSubstr("position 3"));
  EXPECT_THAT(refusal({{.sequence = 0}, {.sequence = 1}, {.sequence = 0, .position = 1}}), HasSubstr("position 1"));
  EXPECT_THAT(refusal({{.sequence = 1}, {.sequence = 2}}), HasSubstr("slots 1 and 2"));
  const absl::Status twice =
      cluster.engine(0).OnOrder({0, StepOrder{{MicroBatch{{{.sequence = 0}}}, MicroBatch{{{.sequence = 1, .position = 1}}}}}});
  EXPECT_THAT(std::string(twice.message()), HasSubstr("two micro-batches"));
}

}  // namespace
}  // namespace lime
