// A sequence that computes wrong ids and goes back has the bits of one that never computed them:
// random plans by seed.

#include "daemon/engine/stage_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/kv_spill.h"
#include "tests/cases.h"
#include "tests/integration/stage/stage_orders.h"

namespace lime {
namespace {

// Orders rows of wrong ids from `position` on, as a guess does, and goes back behind the row before:
// if the model has a state, to the snapshot that this row has left.
void OrderGuess(StageCluster& cluster, const Plan& plan, int32_t s, int64_t position, const Reference& request) {
  if (HasState(plan) && SnapshotFor(plan, position) < 0) return;
  MicroBatch guess;
  for (int64_t at = position; at < std::min(position + plan.prefill_chunk, plan.context); ++at) {
    const int32_t wrong = (request.prompt.front() + static_cast<int32_t>(at)) % 100;
    guess.rows.push_back({.sequence = s, .token = wrong, .position = static_cast<int32_t>(at)});
  }
  cluster.SendOrder(StepOrder{{std::move(guess)}});
  cluster.SendOrder(RollbackOrder{.sequence = s, .positions = position, .snapshot = HasState(plan) ? SnapshotFor(plan, position) : -1});
}

// With a guess behind every row of the answers, and behind every chunk of the prompts.
int Generate(const std::string& dir, const Plan& plan, const std::vector<Reference>& references, uint64_t seed) {
  StageCluster cluster(dir, plan, seed, 1 + static_cast<int>(seed % 2));
  EXPECT_TRUE(cluster.ok());
  if (!cluster.ok()) return 0;
  int guesses = 0;
  const std::vector<Reference> requests(references.begin(), references.begin() + plan.sequences);
  const auto guess = [&](int32_t s, int64_t position) {
    guesses += !HasState(plan) || SnapshotFor(plan, position) >= 0;
    OrderGuess(cluster, plan, s, position, requests[static_cast<size_t>(s)]);
  };
  for (int32_t s = 0; s < plan.sequences; ++s) {
    const std::vector<int32_t>& prompt = requests[static_cast<size_t>(s)].prompt;
    cluster.SendOrder(AdmitOrder{.sequence = s, .request = s, .positions = plan.context, .prompt = prompt});
    for (int64_t at = 0; at < std::ssize(prompt);) {
      MicroBatch batch;
      // Up to a whole page, where a snapshot is taken.
      for (int64_t i = 0; i < plan.prefill_chunk && at < std::ssize(prompt) && (i == 0 || at % kPageTokens != 0); ++i, ++at) {
        batch.rows.push_back({.sequence = s,
                              .token = prompt[static_cast<size_t>(at)],
                              .position = static_cast<int32_t>(at),
                              .wants_logits = at + 1 == std::ssize(prompt),
                              .snapshot = SnapshotFor(plan, at + 1)});
      }
      cluster.SendOrder(StepOrder{{std::move(batch)}});
      guess(s, at);
    }
  }
  for (int token = 0; token + 1 < kNewTokens; ++token) {
    OrderToken(cluster, plan, requests, token);
    for (int32_t s = 0; s < plan.sequences; ++s) guess(s, std::ssize(requests[static_cast<size_t>(s)].prompt) + token + 1);
  }
  for (int32_t s = 0; s < plan.sequences; ++s) {
    EXPECT_EQ(cluster.Await(s, kNewTokens), requests[static_cast<size_t>(s)].tokens) << "slot " << s;
    EXPECT_EQ(cluster.sampler().hash(s), requests[static_cast<size_t>(s)].hash) << "slot " << s;
  }
  EXPECT_TRUE(cluster.status().ok()) << cluster.status();
  return guesses;
}

class StageRollback : public ::testing::TestWithParam<Variant> {};

TEST_P(StageRollback, LeavesTheBitsOfASequenceThatNeverWentAhead) {
  TempDir dir;
  ASSERT_TRUE(MakeModel(OptionsOf(GetParam()), dir / "model").ok());
  const auto spec = LoadModelSpec(dir / "model");
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<Reference> references;
  for (const int length : {40, 26, 57}) references.push_back(Alone(dir / "model", RandomIds(length, length, 100)));
  int guesses = 0;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(12, 100)); ++seed) {
    const Plan plan = RandomPlan(*spec, seed, {.state_snapshots = 2}).Draw();
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(plan)));
    guesses += Generate(dir / "model", plan, references, seed);
    if (HasFailure()) return;
  }
  EXPECT_GT(guesses, ManyCases() ? 20 : 5);
}

INSTANTIATE_TEST_SUITE_P(All, StageRollback,
                         ::testing::Values(Variant{.name = "llama_bf16", .quantization = std::nullopt},
                                           Variant{.name = "qwen3_5_bf16", .family = "qwen3_5", .quantization = std::nullopt}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lime
