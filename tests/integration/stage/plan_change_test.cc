// A run that changes its plan while tokens come, over real servers with engines that compute: KV
// follows its layers, and tokens and logits stay those of one engine.

#include <map>

#include "coordinator/rpc/cluster_client.h"
#include "coordinator/serving/cluster_run.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/rpc/device_server.h"
#include "daemon/stores/block_store.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/sparse_parts.h"
#include "tests/daemon/rpc/keep_callback_threads.h"
#include "tests/integration/stage/spilling_plans.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kTokens = 24;
constexpr int kDevices = 5;  // that random plans use

class PlanChangeTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(OptionsOf({.name = "llama_bf16", .quantization = std::nullopt}), /*bundles=*/false); }

  // Devices have the model, with bundles if they are asked for.
  void Start(MakeModelOptions options, bool bundles) {
    options.config.max_positions = 2 * kLongContext;
    ASSERT_TRUE(MakeModel(options, dir_ / "model").ok());
    const std::string folder = bundles ? dir_ / "store" : dir_ / "model";
    if (bundles) ASSERT_TRUE(PrepareBlockStore(dir_ / "model", folder, {.bundles = true}).ok());
    const auto checkpoint = Checkpoint::Open(dir_ / "model");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto spec = checkpoint->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *spec;
    const auto vocab = static_cast<int32_t>(std::min<int64_t>(200, options.config.vocab_size));
    for (const int length : {60, 33, 5}) references_.push_back(Alone(dir_ / "model", RandomIds(length, length, vocab), kTokens));
    for (const int length : {1250, 530, 40})
      long_references_.push_back(Alone(dir_ / "model", RandomIds(length, length, vocab), kTokens, kLongContext));
    ClusterClient::Options cluster;
    for (int d = 0; d < kDevices; ++d) {
      DeviceServer::Options device;
      device.health.name = std::string(1, static_cast<char>('a' + d));
      device.plans.weights = folder;
      device.plans.make_stage = MakeEngineStages({.num_threads = 1});
      absl::StatusOr<std::unique_ptr<DeviceServer>> server = DeviceServer::Start(device);
      ASSERT_TRUE(server.ok()) << server.status();
      cluster.devices.push_back({.name = device.health.name, .address = absl::StrCat("127.0.0.1:", (*server)->port())});
      servers_.push_back(*std::move(server));
    }
    absl::StatusOr<std::unique_ptr<ClusterClient>> client = ClusterClient::Connect(cluster);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  // As many requests as both plans have slots for; after so many steps the other plan goes on.
  void Run(const Plan& first, const Plan& next, int64_t change_after, const std::vector<Reference>& references) {
    SCOPED_TRACE(absl::StrCat(ToJsonText(first), "\n", ToJsonText(next)));
    const auto requests = static_cast<size_t>(std::min(first.sequences, next.sequences));
    std::string said;
    bool changed = false;
    ClusterRun::Survival survival{.say = [&](const std::string& sentence) { said += sentence + "\n"; }};
    survival.change = [&](const OrderWriter::Remaining& remaining) -> std::optional<ClusterRun::Change> {
      if (remaining.steps > kTokens - change_after || std::exchange(changed, true)) return std::nullopt;
      return ClusterRun::Change{.plan = next, .why = "why", .taking_over = absl::Seconds(20), .computing_again = absl::Seconds(40)};
    };
    ASSERT_TRUE(client_->Install(first, {}).ok());
    ClusterRun run(*client_, survival);
    for (size_t r = 0; r < requests; ++r) {
      ASSERT_TRUE(
          run.Add({.prompt = references[r].prompt, .max_new_tokens = kTokens}, {.params = {.temperature = 0}, .hash_logits = true}).ok());
    }
    std::vector<std::vector<int32_t>> tokens(requests);
    std::vector<uint64_t> hashes(requests);
    const absl::Status status = run.Run(
        [&](const ClusterRun::Token& token) {
          tokens[static_cast<size_t>(token.request)].push_back(token.token);
          hashes[static_cast<size_t>(token.request)] = token.logits_hash;
          return true;
        },
        nullptr);
    ASSERT_TRUE(status.ok()) << status << said;
    for (size_t r = 0; r < requests; ++r) {
      ASSERT_EQ(tokens[r], references[r].tokens) << said;
      ASSERT_EQ(hashes[r], references[r].hash) << said;
    }
    ASSERT_EQ(run.changes(), 1);
    ASSERT_EQ(run.recoveries(), 0) << said;
    ASSERT_THAT(said, Not(HasSubstr("computed again")));
    ASSERT_TRUE(client_->Unload().ok());
  }

  TempDir dir_;
  ModelSpec spec_;
  std::vector<Reference> references_, long_references_;  // of one engine
  std::vector<std::unique_ptr<DeviceServer>> servers_;
  std::unique_ptr<ClusterClient> client_;
};

TEST_F(PlanChangeTest, KvFollowsItsLayersWithEveryBit) {
  for (uint64_t seed = 1; seed <= 30 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Run(RandomPlan(spec_, seed).Draw(), RandomPlan(spec_, seed + 1000).Draw(), 1 + static_cast<int64_t>(seed) % (kTokens - 6), references_);
  }
}

// The first request ends before the change. Its next turn comes behind the change.
TEST_F(PlanChangeTest, KvOfARequestThatHasEndedIsUsedUnderTheNextPlan) {
  constexpr int kFirst = 8;
  std::vector<int32_t> ids = references_[0].prompt;
  ids.insert(ids.end(), references_[0].tokens.begin(), references_[0].tokens.begin() + kFirst);
  const std::vector<int32_t> more = RandomIds(9, 5, 200);
  ids.insert(ids.end(), more.begin(), more.end());
  const Reference turn = Alone(dir_ / "model", ids);
  int tried = 0;
  for (uint64_t seed = 1; tried < 8 && !HasFailure(); ++seed) {
    const Plan first = RandomPlan(spec_, seed).Draw(), next = RandomPlan(spec_, seed + 1000).Draw();
    if (std::min(first.sequences, next.sequences) < 2) continue;
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(first), "\n", ToJsonText(next)));
    ++tried;
    bool changed = false;
    ClusterRun::Survival survival;
    survival.change = [&](const OrderWriter::Remaining& remaining) -> std::optional<ClusterRun::Change> {
      if (remaining.steps > kTokens - kFirst - 4 || std::exchange(changed, true)) return std::nullopt;
      return ClusterRun::Change{.plan = next, .why = "why", .taking_over = absl::Seconds(20), .computing_again = absl::Seconds(40)};
    };
    std::map<RequestId, int64_t> computed;
    ClusterRun::Owner owner;
    owner.on_admit = [&](RequestId request, int64_t positions) { computed[request] = positions; };
    ASSERT_TRUE(client_->Install(first, {}).ok());
    ClusterRun run(*client_, survival, {}, owner, /*prompt_cache=*/kGiB);
    std::map<RequestId, Reference> answers;
    const auto add = [&](const std::vector<int32_t>& prompt, int64_t tokens) {
      const auto added =
          run.Add({.prompt = prompt, .max_new_tokens = tokens, .cache_prompt = true}, {.params = {.temperature = 0}, .hash_logits = true});
      EXPECT_TRUE(added.ok()) << added.status();
    };
    add(references_[0].prompt, kFirst);
    add(references_[1].prompt, kTokens);
    const absl::Status status = run.Run(
        [&](const ClusterRun::Token& token) {
          answers[token.request].tokens.push_back(token.token);
          answers[token.request].hash = token.logits_hash;
          if (run.changes() == 1 && token.request == 1 && answers.size() == 2 && !computed.contains(2))
            add(ids, kNewTokens), computed[2] = 0;
          return true;
        },
        nullptr);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(run.changes(), 1);
    EXPECT_EQ(computed[2], 64) << "whole pages of 60 ids and 7 more";
    EXPECT_EQ(answers[1].tokens, references_[1].tokens);
    EXPECT_EQ(answers[1].hash, references_[1].hash);
    EXPECT_EQ(answers[2].tokens, turn.tokens);
    EXPECT_EQ(answers[2].hash, turn.hash);
    ASSERT_TRUE(client_->Unload().ok());
  }
}

class SparsePlanChangeTest : public PlanChangeTest {
 protected:
  void SetUp() override {
    Start(OptionsOf({.name = "opt_bf16", .family = "opt", .activation = Activation::kRelu, .head_dim = 24}), /*bundles=*/true);
  }
};

// The next plan has other sparse MLPs, with other rows, or none. Memory for neurons begins anew.
TEST_F(SparsePlanChangeTest, SoItDoesFromSparseMlpsAndToThem) {
  int from_sparse = 0, to_sparse = 0;
  for (uint64_t seed = 1; seed <= 15 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Plan first = RandomPlan(spec_, seed, {.sparse = seed % 3 != 0}).Draw(),
               next = RandomPlan(spec_, seed + 1000, {.sparse = seed % 3 != 1}).Draw();
    from_sparse += HasSparseParts(first), to_sparse += HasSparseParts(next);
    Run(first, next, 1 + static_cast<int64_t>(seed) % (kTokens - 6), references_);
  }
  EXPECT_GT(from_sparse, 5);
  EXPECT_GT(to_sparse, 5);
}

TEST_F(PlanChangeTest, SoItDoesFromDisksAndHostsAndToThem) {
  const int64_t pages = PagesAt(long_references_, kTokens);
  int from_hosts = 0, to_hosts = 0;
  const auto lends = [](const Plan& plan) { return std::ranges::any_of(plan.devices, HasKvOnHost); };
  for (uint64_t seed = 1; seed <= 12 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Plan first = DrawLongPlan(spec_, seed, pages), next = DrawLongPlan(spec_, seed + 500, pages);
    from_hosts += lends(first), to_hosts += lends(next);
    Run(first, next, 1 + static_cast<int64_t>(seed) % (kTokens - 6), long_references_);
  }
  EXPECT_GT(from_hosts, 2);
  EXPECT_GT(to_hosts, 2);
}

}  // namespace
}  // namespace lime
