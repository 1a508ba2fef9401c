// Weights that are read, or are views of the files, give the same bits over any plan: random ones, by seed.

#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/stage_cluster.h"
#include "tests/integration/stage_plans.h"

namespace lime {
namespace {

using ::testing::StartsWith;

constexpr LoaderKind kLoaders[] = {LoaderKind::kRead, LoaderKind::kMmap, LoaderKind::kAuto};

bool Streams(const Plan& plan) {
  return plan.embedding == EmbeddingPlacement::kByRows || std::ranges::any_of(plan.parts, &PlanPart::streamed);
}

void ExpectBitsOfOne(const std::string& dir, uint64_t seeds, int64_t vocab) {
  const auto checkpoint = Checkpoint::Open(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<Reference> references;
  for (int s = 0; s < 3; ++s) references.push_back(Alone(dir, RandomIds(40 + s, 5 + 13 * s, static_cast<int32_t>(vocab))));
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    Plan plan = RandomPlan(*spec, seed).Draw();
    if (seed % 2 == 0) plan = KeepingAll(std::move(plan));
    const LoaderKind loader = kLoaders[seed % 3];
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", std::string(LoaderName(loader)), "\n", plan.DebugString()));
    StageCluster cluster(
        dir, plan, seed, 1, Delivery::kInOrder, [] { return std::make_unique<GreedySampler>(); }, {},
        [loader](int32_t, StageEngine::Options& options) { options.loader = loader; });
    ASSERT_TRUE(cluster.ok());
    const std::vector<Reference> requests(references.begin(), references.begin() + plan.sequences);
    OrderAll(cluster, plan, requests);
    for (int32_t s = 0; s < plan.sequences; ++s) {
      ASSERT_EQ(cluster.Await(s, kNewTokens), requests[s].tokens);
      ASSERT_EQ(cluster.sampler().hash(s), requests[s].hash);
    }
    for (int32_t d = 0; d < plan.NumDevices(); ++d) {
      const LoadSummary& load = cluster.engine(d).load();
      if (load.bytes == 0) continue;
      if (loader == LoaderKind::kAuto || (loader == LoaderKind::kMmap && Streams(plan))) continue;
      EXPECT_THAT(load.loader, StartsWith(std::string(LoaderName(loader))));
    }
  }
}

class StageLoaderTest : public ::testing::TestWithParam<Variant> {};

TEST_P(StageLoaderTest, EveryLoaderGivesTheBitsOfOneEngine) {
  const MakeModelOptions options = OptionsOf(GetParam());
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ExpectBitsOfOne(dir / "model", 6, std::min<int64_t>(200, options.config.vocab_size));
}

INSTANTIATE_TEST_SUITE_P(Families, StageLoaderTest, ::testing::ValuesIn(Variants()), [](const auto& info) { return info.param.name; });

TEST(StageLoaderShippedTest, EveryLoaderGivesTheBitsOfOneEngine) {
  ExpectBitsOfOne(ShippedModel("lime-fables"), 6, 512);
}

}  // namespace
}  // namespace lime
