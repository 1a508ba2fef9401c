// Weights that are read, or are views of the files, give the same bits over any plan: random ones,
// by seed.

#include "daemon/engine/stage_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cases.h"
#include "tests/integration/models.h"
#include "tests/integration/stage/stage_bits.h"
#include "tests/integration/variants.h"

namespace lime {
namespace {

using ::testing::StartsWith;

constexpr LoaderKind kLoaders[] = {LoaderKind::kRead, LoaderKind::kMmap, LoaderKind::kAuto};

bool Streams(const Plan& plan) {
  return plan.embedding == EmbeddingPlacement::kByRows || std::ranges::any_of(plan.parts, &PlanPart::streamed);
}

// Every second plan keeps all of it, so that a view of the files may be chosen.
BitsOptions EveryLoader() {
  const auto loader = [](uint64_t seed) { return kLoaders[seed % std::size(kLoaders)]; };
  return {.change = [](uint64_t seed, Plan plan) { return seed % 2 == 0 ? KeepingAll(std::move(plan)) : plan; },
          .adjust = [loader](uint64_t seed, StageEngine::Options& options) { options.loader = loader(seed); },
          .check =
              [loader](uint64_t seed, const Plan& plan, StageCluster& cluster) {
                if (loader(seed) == LoaderKind::kAuto || (loader(seed) == LoaderKind::kMmap && Streams(plan))) return;
                for (int32_t d = 0; d < plan.NumDevices(); ++d) {
                  const LoadSummary& load = cluster.engine(d).load();
                  if (load.bytes == 0) continue;
                  EXPECT_THAT(load.loader, StartsWith(std::string(LoaderName(loader(seed)))));
                }
              }};
}

class StageLoaderTest : public ::testing::TestWithParam<Variant> {};

TEST_P(StageLoaderTest, EveryLoaderHasTheBitsOfOneEngine) {
  const MakeModelOptions options = OptionsOf(GetParam());
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ExpectBitsOfOne(dir / "model", Cases(4, 12), std::min<int64_t>(200, options.config.vocab_size), EveryLoader());
}

INSTANTIATE_TEST_SUITE_P(Families, StageLoaderTest, ::testing::ValuesIn(SpreadVariants()),
                         [](const auto& info) { return info.param.name; });

TEST(StageLoaderShippedTest, EveryLoaderHasTheBitsOfOneEngine) {
  ExpectBitsOfOne(ShippedModel("lime-fables"), Cases(4, 12), 512, EveryLoader());
}

}  // namespace
}  // namespace lime
