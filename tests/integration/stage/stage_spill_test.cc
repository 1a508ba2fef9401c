// KV that goes to disks and to other devices while a model generates over several engines leaves
// every bit as one engine with memory for it makes it: random plans, pages that each device keeps,
// and moments at which they change, by seed.

#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "tests/cases.h"
#include "tests/integration/stage/spilling_plans.h"

namespace lime {
namespace {

constexpr int kTokens = 40;

struct Totals {
  Bytes written = 0, read = 0, lent = 0, fetched = 0;
  int64_t changes = 0;
};

// A slot whose request has ended serves another one: what others have of the first one's KV is
// free.
void GenerateAgain(StageCluster& cluster, const Plan& plan, const std::vector<Reference>& requests) {
  for (int32_t s = 0; s < std::ssize(requests); ++s) cluster.SendOrder(RetireOrder{s});
  const Reference& again = requests.back();
  OrderPrompt(cluster, plan, 0, again, kLongContext);
  OrderToken(cluster, plan, {again}, 0);
  const std::vector<int32_t> tokens = cluster.Await(0, kTokens + 2);
  ASSERT_EQ(std::vector(tokens.end() - 2, tokens.end()), std::vector(again.tokens.begin(), again.tokens.begin() + 2));
}

void Generate(const std::string& dir, const Plan& plan, const std::vector<Reference>& requests, uint64_t seed, Totals& totals) {
  Draws draws(plan, seed);
  const int64_t full = FullLayerPages(plan);
  // All pages from the start, or more as they are needed.
  const bool grows = seed % 3 != 0;
  const int64_t most = grows ? full - 1 : full;
  const auto draw = [&](int64_t tokens) {
    const int64_t least = std::min(most, PagesAt(requests, std::min<int64_t>(kTokens, tokens + kAhead)));
    return draws.Draw(grows ? least + draws.Below(most - least + 1) : full);
  };
  absl::StatusOr<Plan> first = WithResidency(plan, draw(0));
  ASSERT_TRUE(first.ok()) << first.status();
  SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(*first)));
  StageCluster cluster(dir, *first, seed, 1 + static_cast<int>(seed % 2));
  ASSERT_TRUE(cluster.ok());
  for (int32_t s = 0; s < std::ssize(requests); ++s) OrderPrompt(cluster, *first, s, requests[s], kLongContext);
  for (int token = 0; token + 1 < kTokens; ++token) {
    if (grows && draws.Below(6) == 0) cluster.SendOrder(ResidencyOrder{draw(token)});
    OrderToken(cluster, *first, requests, token);
    if (seed % 2 == 0) cluster.Await(0, static_cast<size_t>(token));
  }
  for (int32_t s = 0; s < std::ssize(requests); ++s) {
    ASSERT_EQ(cluster.Await(s, kTokens), requests[s].tokens);
    ASSERT_EQ(cluster.sampler().hash(s), requests[s].hash);
  }
  GenerateAgain(cluster, *first, requests);
  ASSERT_TRUE(cluster.status().ok()) << cluster.status();
  for (int d = 0; d < plan.NumDevices(); ++d) {
    const DeviceStatistics stats = cluster.engine(d).stats();
    (HasKvOnHost(plan.devices[d]) ? totals.lent : totals.written) += stats.kv_written;
    totals.fetched += stats.kv_fetched;
    totals.read += stats.kv_read, totals.changes += stats.residency_changes;
    if (plan.devices[d].max_layer_pages == 0) {
      ASSERT_EQ(stats.kv_written, 0);
    }
  }
}

void ExpectBitsOfOne(const std::string& dir, int seeds, int64_t vocab) {
  const auto checkpoint = Checkpoint::Open(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<Reference> references;
  for (const int length : {1250, 530, 40})
    references.push_back(Alone(dir, RandomIds(70 + length, length, static_cast<int32_t>(vocab)), kTokens, kLongContext));
  Totals totals;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(seeds); ++seed) {
    const Plan plan = Spilling(*spec, seed);
    Generate(dir, plan, {references.begin(), references.begin() + plan.sequences}, seed, totals);
    if (testing::Test::HasFatalFailure()) return;
  }
  if (!ManyCases()) return;
  EXPECT_GT(totals.written, 0);
  EXPECT_EQ(totals.lent > 0, spec->config.HasAlikeKv()) << "others refuse hosts";
  // Nothing comes back that no window reaches.
  if (!spec->config.HasAlikeKv()) {
    EXPECT_EQ(totals.fetched, 0);
  } else if (spec->config.layer(0).window == 0 || spec->config.layer(0).window > kKvPiece) {
    EXPECT_GT(totals.fetched, totals.lent / 10);
  } else {
    EXPECT_EQ(totals.fetched, 0);
  }
  EXPECT_GT(totals.read, 5 * totals.written);  // in every step again
  EXPECT_GT(totals.changes, seeds / 4);
}

// Families, dtypes, attention to all positions and to a window that begins within a piece or behind
// what is away.
std::vector<Variant> SpillVariants() {
  std::vector<Variant> variants = {
      {.name = "llama_bf16", .quantization = std::nullopt},
      {.name = "mistral_bf16", .family = "mistral", .quantization = std::nullopt, .window = 700},
      {.name = "mistral_f16_short", .family = "mistral", .dtype = DType::kF16, .quantization = std::nullopt, .window = 50},
      {.name = "qwen3_f32", .family = "qwen3", .dtype = DType::kF32, .quantization = std::nullopt},
      {.name = "opt_bf16", .family = "opt", .quantization = std::nullopt, .head_dim = 24},
      {.name = "qwen3_5_bf16", .family = "qwen3_5", .quantization = std::nullopt},
      {.name = "glm4_moe_lite_bf16", .family = "glm4_moe_lite", .quantization = std::nullopt},
      {.name = "gemma4_bf16", .family = "gemma4", .quantization = std::nullopt, .window = 700},
      {.name = "llama_q4", .quantization = Quantization{4, 64}}};
  for (Variant& variant : variants) {
    if (variant.family == "opt") variant.activation = Activation::kRelu;
  }
  return variants;
}

class StageSpillFamilies : public ::testing::TestWithParam<Variant> {};

TEST_P(StageSpillFamilies, KvOnDisksLeavesTheBitsOfOneEngine) {
  MakeModelOptions options = OptionsOf(GetParam());
  options.config.max_positions = 2 * kLongContext;
  if (HasState(GetParam())) options.config.num_layers = 8;  // two of them have KV, as in the other models
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ExpectBitsOfOne(dir / "model", Cases(12, 48), std::min<int64_t>(200, options.config.vocab_size));
}

INSTANTIATE_TEST_SUITE_P(All, StageSpillFamilies, ::testing::ValuesIn(SpillVariants()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lime
