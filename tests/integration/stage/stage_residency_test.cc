// Residency that changes while a model generates over several engines leaves every bit as one
// engine makes it: random plans, residencies and moments, by seed.

#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/plan_residency.h"
#include "tests/cases.h"
#include "tests/integration/stage/stage_orders.h"

namespace lime {
namespace {

constexpr int kTokens = 48;
constexpr int64_t kAhead = 2 * kResidencyLead;  // positions that there are pages for beyond those ordered

// Pages of a layer that all requests need before they have generated `tokens`.
int64_t PagesAt(const std::vector<Reference>& requests, int64_t tokens) {
  int64_t pages = 0;
  for (const Reference& request : requests) {
    const int64_t positions = static_cast<int64_t>(request.prompt.size()) + std::min<int64_t>(tokens, kTokens);
    pages += (positions + kPageTokens - 1) / kPageTokens;
  }
  return pages;
}

class Changes {
 public:
  Changes(const Plan& plan, const std::vector<Reference>& requests, uint64_t seed)
      : plan_(plan), requests_(requests), random_(seed), full_(FullLayerPages(plan) - 1) {}

  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  // Any parts, and pages for what comes soon or more.
  Residency Draw(int64_t tokens) {
    const int64_t least = std::min(full_, PagesAt(requests_, tokens + kAhead));
    Residency residency{.layer_pages = least + Below(static_cast<int>(full_ - least) + 1)};
    const int percent = Below(101);
    for (int p = 0; p < plan_.NumParts(); ++p) {
      if (Below(100) < percent) residency.streamed.push_back(p);
    }
    return residency;
  }

 private:
  const Plan& plan_;
  const std::vector<Reference>& requests_;
  std::mt19937_64 random_;
  const int64_t full_;  // one less than all, so that the plan is one whose KV grows
};

void ExpectBitsOfOne(const std::string& dir, int seeds, int64_t vocab) {
  const auto checkpoint = Checkpoint::Open(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<Reference> references;
  references.reserve(3);
  for (int s = 0; s < 3; ++s) references.push_back(Alone(dir, RandomIds(40 + s, 5 + 13 * s, static_cast<int32_t>(vocab)), kTokens));
  int64_t changed = 0;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(seeds); ++seed) {
    Plan plan = Elastic(RandomPlan(*spec, seed).Draw());
    const std::vector<Reference> requests(references.begin(), references.begin() + plan.sequences);
    Changes changes(plan, requests, seed);
    absl::StatusOr<Plan> first = WithResidency(plan, changes.Draw(0));
    ASSERT_TRUE(first.ok()) << first.status();
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(*first)));
    StageCluster cluster(dir, *first, seed);
    ASSERT_TRUE(cluster.ok());
    for (int32_t s = 0; s < plan.sequences; ++s) OrderPrompt(cluster, plan, s, requests[static_cast<size_t>(s)], kContext);
    for (int token = 0; token + 1 < kTokens; ++token) {
      if (changes.Below(4) == 0) cluster.SendOrder(ResidencyOrder{changes.Draw(token)});
      OrderToken(cluster, plan, requests, token);
      // Half of the runs order everything ahead, the others token by token.
      if (seed % 2 == 0) cluster.Await(0, static_cast<size_t>(token));
    }
    for (int32_t s = 0; s < plan.sequences; ++s) {
      ASSERT_EQ(cluster.Await(s, kTokens), requests[s].tokens);
      ASSERT_EQ(cluster.sampler().hash(s), requests[s].hash);
    }
    for (int d = 0; d < plan.NumDevices(); ++d) changed += cluster.engine(d).stats().residency_changes;
  }
  EXPECT_GT(changed, ManyCases() ? 2 * seeds : 0);
}

class StageResidencyFamilies : public ::testing::TestWithParam<Variant> {};

TEST_P(StageResidencyFamilies, AnyChangeLeavesTheBitsOfOneEngine) {
  const MakeModelOptions options = OptionsOf(GetParam());
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ExpectBitsOfOne(dir / "model", Cases(4, 16), std::min<int64_t>(200, options.config.vocab_size));
}

INSTANTIATE_TEST_SUITE_P(All, StageResidencyFamilies, ::testing::ValuesIn(SpreadVariants()),
                         [](const auto& info) { return info.param.name; });

TEST(StageResidencyTest, TheShippedModelHasTheSameBitsWhateverChanges) {
  ExpectBitsOfOne(std::string(LIME_SOURCE_DIR) + "/models/lime-fables", Cases(6, 24), 512);
}

}  // namespace
}  // namespace lime
