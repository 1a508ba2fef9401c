// Runs random plans of a model, by seed, over several engines, and compares tokens and logits with
// the reference model.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/weights/checkpoint.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "tests/integration/stage/stage_cluster.h"
#include "tests/integration/stage/stage_plans.h"

namespace lime {

// Changes of the random plans and engines, by seed.
struct BitsOptions {
  RandomPlan::Shape shape;
  std::function<Plan(uint64_t seed, Plan plan)> change;
  std::function<void(uint64_t seed, StageEngine::Options& options)> adjust;
  std::function<void(uint64_t seed, const Plan& plan, StageCluster& cluster)> check;  // after all tokens
};

inline void ExpectBitsOfOne(const std::string& dir, uint64_t seeds, int64_t vocab, const BitsOptions& options = {}) {
  const auto checkpoint = Checkpoint::Open(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<Reference> references(3);
  for (int s = 0; s < 3; ++s) references[s] = Alone(dir, RandomIds(40 + s, 5 + 13 * s, static_cast<int32_t>(vocab)));
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    Plan plan = RandomPlan(*spec, seed, options.shape).Draw();
    ASSERT_FALSE(plan.parts.empty()) << "seed " << seed;
    if (options.change) plan = options.change(seed, std::move(plan));
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(plan)));
    StageCluster cluster(
        dir, plan, seed, 1, Delivery::kInOrder, [] { return std::make_unique<GreedySampler>(); }, {},
        [&](int32_t, StageEngine::Options& engine) {
          if (options.adjust) options.adjust(seed, engine);
        });
    ASSERT_TRUE(cluster.ok());
    const std::vector<Reference> requests(references.begin(), references.begin() + plan.sequences);
    OrderAll(cluster, plan, requests);
    for (int32_t s = 0; s < plan.sequences; ++s) {
      ASSERT_EQ(cluster.Await(s, kNewTokens), requests[s].tokens);
      ASSERT_EQ(cluster.sampler().hash(s), requests[s].hash);
    }
    if (options.check) options.check(seed, plan, cluster);
  }
}

}  // namespace lime
