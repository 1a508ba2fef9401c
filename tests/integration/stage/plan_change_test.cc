// A run that changes its plan while tokens come, over real servers with engines that compute: KV
// follows its layers, and tokens and logits stay those of one engine.

#include "coordinator/rpc/cluster_client.h"
#include "coordinator/serving/cluster_run.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/rpc/device_server.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/hosting/kv_on_host.h"
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
  void SetUp() override {
    MakeModelOptions options = OptionsOf({.name = "llama_bf16", .quantization = std::nullopt});
    options.config.max_positions = 2 * kLongContext;
    ASSERT_TRUE(MakeModel(options, dir_ / "model").ok());
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
      device.plans.weights = dir_ / "model";
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
