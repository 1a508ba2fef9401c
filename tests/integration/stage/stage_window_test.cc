// Layers with a window give KV pages back, and leave every bit as a model that keeps all pages
// makes it: random plans by seed, with all pages reserved and with pages that come as sequences
// grow. The pages in use stay within what the plan counts.

#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_rows.h"
#include "tests/cases.h"
#include "tests/integration/stage/stage_orders.h"

namespace lime {
namespace {

constexpr int64_t kWindow = 50;
constexpr int64_t kWindowContext = 700;

// Pages that the device's layers have for a sequence of so many positions, counted from the model.
int64_t PagesOfSequence(const ModelSpec& spec, const Plan& plan, int device, int64_t positions) {
  int64_t pages = 0;
  for (const int32_t layer : LayersOn(plan, device)) {
    const int64_t all = KvPagesFor(positions), window = spec.config.layer(layer).window;
    pages += window == 0 ? all : std::min(all, WindowPages(window, OwnRows(plan)));
  }
  return pages;
}

class StageWindow : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    MakeModelOptions options = OptionsOf(GetParam());
    options.config.max_positions = 2 * kWindowContext;
    ASSERT_TRUE(MakeModel(options, dir_ / "model").ok());
    const auto spec = LoadModelSpec(dir_ / "model");
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *spec;
    for (const int length : {600, 330, 40})
      references_.push_back(Alone(dir_ / "model", RandomIds(50 + length, length, 200), kNewTokens, kWindowContext));
  }

  Plan Draw(uint64_t seed) const { return RandomPlan(spec_, seed, {.context = kWindowContext, .prompt = 200, .most_chunk = 90}).Draw(); }

  // All sequences, with pages for `positions` positions from the start, or none yet.
  void ExpectBits(const Plan& plan, uint64_t seed, int64_t reserved) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(plan)));
    ASSERT_EQ(WindowOf(plan), (KvWindow{.positions = kWindow, .pages = WindowPages(kWindow, OwnRows(plan))}));
    StageCluster cluster(dir_ / "model", plan, seed, 1 + static_cast<int>(seed % 2));
    ASSERT_TRUE(cluster.ok());
    const std::vector<Reference> requests(references_.begin(), references_.begin() + plan.sequences);
    for (int32_t s = 0; s < plan.sequences; ++s) OrderPrompt(cluster, plan, s, requests[static_cast<size_t>(s)], plan.context);
    for (int token = 0; token + 1 < kNewTokens; ++token) OrderToken(cluster, plan, requests, token);
    for (int32_t s = 0; s < plan.sequences; ++s) {
      ASSERT_EQ(cluster.Await(s, kNewTokens), requests[static_cast<size_t>(s)].tokens);
      ASSERT_EQ(cluster.sampler().hash(s), requests[static_cast<size_t>(s)].hash);
    }
    cluster.AwaitSteps();
    for (int d = 0; d < plan.NumDevices(); ++d) {
      int64_t pages = 0;
      for (const Reference& request : requests)
        pages += PagesOfSequence(spec_, plan, d, std::max<int64_t>(reserved, std::ssize(request.prompt) + kNewTokens - 1));
      const DeviceStatistics stats = cluster.engine(d).stats();
      EXPECT_EQ(stats.kv_pages, plan.devices[static_cast<size_t>(d)].kv_pages);
      EXPECT_EQ(stats.kv_pages - stats.kv_pages_free, pages) << "device " << d;
      if (reserved > 0) EXPECT_EQ(stats.kv_pages_free, 0) << "the plan counts exactly what is used";
    }
  }

  TempDir dir_;
  ModelSpec spec_;
  std::vector<Reference> references_;
};

TEST_P(StageWindow, PagesThatAreGivenBackLeaveTheBits) {
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(12, 100)); ++seed) {
    ASSERT_NO_FATAL_FAILURE(ExpectBits(Draw(seed), seed, kWindowContext));
    if (HasFailure()) return;
  }
}

// With pages for nearly all positions, so that they come as sequences grow.
TEST_P(StageWindow, PagesThatComeAsSequencesGrowLeaveTheBits) {
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(8, 60)); ++seed) {
    const Plan all = Elastic(Draw(seed));
    const absl::StatusOr<Plan> plan = WithResidency(all, {.layer_pages = FullLayerPages(all) - 1, .streamed = ResidencyOf(all).streamed});
    ASSERT_TRUE(plan.ok()) << plan.status();
    int64_t needed = 0;  // of the layer that has the most
    for (int32_t s = 0; s < plan->sequences; ++s)
      needed +=
          std::min(FullLayerPages(all) / all.sequences, KvPagesFor(std::ssize(references_[static_cast<size_t>(s)].prompt) + kNewTokens));
    if (needed > ResidencyOf(*plan).layer_pages) continue;
    ASSERT_NO_FATAL_FAILURE(ExpectBits(*plan, seed, 0));
    if (HasFailure()) return;
  }
}

// However long a sequence is, a layer with a window has the same memory.
TEST_P(StageWindow, MemoryOfAWindowDoesNotGrowWithTheContext) {
  PlanRequest request{.context = kWindowContext, .prompt_tokens = 200, .chunks = {64}};
  const auto pages_at = [&](int64_t context) {
    request.context = context;
    ClusterDevice device{.name = "a", .budget = 64 * kGiB};
    device.profile.read_bytes_per_second = 10e9, device.profile.flops = 1e11;
    const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec_, {&device, 1}, request);
    EXPECT_TRUE(problem.ok()) << problem.status();
    std::vector<int64_t> pages;
    for (const PlanPart& part : problem->head.parts) {
      if (HasKv(part.block.kind) && part.kv_pages > 0) pages.push_back(part.kv_pages);
    }
    return pages;
  };
  const std::vector<int64_t> few = pages_at(kWindowContext), many = pages_at(16 * kWindowContext);
  ASSERT_EQ(std::ssize(few), spec_.config.num_layers());
  for (int64_t layer = 0; layer < spec_.config.num_layers(); ++layer) {
    const bool window = spec_.config.layer(layer).window > 0;
    EXPECT_EQ(few[static_cast<size_t>(layer)], window ? WindowPages(kWindow, 64) : KvPagesFor(kWindowContext));
    EXPECT_EQ(many[static_cast<size_t>(layer)], window ? WindowPages(kWindow, 64) : KvPagesFor(16 * kWindowContext));
  }
}

std::vector<Variant> WindowVariants() {
  std::vector<Variant> variants;
  for (const std::string family : {"gemma3", "gemma4", "gpt_oss", "mistral"})
    variants.push_back({.name = family + "_bf16", .family = family, .quantization = std::nullopt, .window = kWindow});
  variants.push_back({.name = "mistral_f16", .family = "mistral", .dtype = DType::kF16, .quantization = std::nullopt, .window = kWindow});
  return variants;
}

INSTANTIATE_TEST_SUITE_P(All, StageWindow, ::testing::ValuesIn(WindowVariants()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lime
