// `lime run --cluster` over real daemons that are killed, stopped or left by their coordinator in
// the middle of it: no token and no bit is another one.

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/programs/run_cluster.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class FaultTest : public ClusterRunTest {
 protected:
  // Long enough that a fault comes in the middle of it; sampled, so that a wrong random number
  // would show.
  static std::vector<std::string> LongRun() {
    return {"run",
            "--model",
            kModel,
            "--prompt",
            "Once upon a time there was a fox",
            "--max-tokens",
            "450",
            "--context",
            "512",
            "--json",
            "--hash-logits",
            "--ignore-eos",
            "--temperature",
            "0.8",
            "--seed",
            "11"};
  }
  static const Answer& Alone() {
    static const Answer answer = Call(LongRun());
    return answer;
  }
  static std::vector<std::string> With(std::vector<std::string> call, const std::vector<std::string>& more) {
    call.insert(call.end(), more.begin(), more.end());
    return call;
  }
  // The run, once tokens come.
  std::unique_ptr<Lime> Begin(const std::vector<std::string>& more = {}) {
    auto run = std::make_unique<Lime>(With(OverCluster(LongRun()), more));
    AwaitSteps(10);
    return run;
  }
  void Restart(int device) {
    const int port = limed_[device]->port();
    limed_[device] = std::make_unique<Limed>(Name(device), port);
  }
  static void ExpectNothingLost(const Answer& answer) {
    ASSERT_EQ(Alone().exit_code, 0) << Alone().err;
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    for (const char* field : {"token_ids", "text", "logits_xxh3", "completion_tokens", "finish_reason"})
      EXPECT_EQ(answer.Json()[field], Alone().Json()[field]) << field << "\n" << answer.err;
  }
};

class AnyDevice : public FaultTest, public ::testing::WithParamInterface<int> {};

TEST_P(AnyDevice, KilledAndStartedAgainCostsNoTokenAndNoBit) {
  const std::unique_ptr<Lime> run = Begin();
  EXPECT_TRUE(WIFSIGNALED(limed_[GetParam()]->End(SIGKILL)));
  Restart(GetParam());
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
}

TEST_P(AnyDevice, KilledForGoodIsPlannedWithout) {
  const std::unique_ptr<Lime> run = Begin({"--patience", "0.2"});
  EXPECT_TRUE(WIFSIGNALED(limed_[GetParam()]->End(SIGKILL)));
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
  const nlohmann::json root = answer.Json();  // the loop walks in it
  EXPECT_FALSE(root["devices"].empty());
  for (const auto& device : root["devices"]) EXPECT_NE(device["name"], Name(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(FirstMiddleLast, AnyDevice, ::testing::Values(0, 1, 2));

// A plan whose KV has grown begins at its first level again, and grows to what is known before that
// is computed.
TEST_F(FaultTest, KvThatHasGrownGrowsAgainAfterALoss) {
  dir_.Write("plan.json", ToJsonText(GrowingPlan()));
  const std::unique_ptr<Lime> run = Begin();
  ASSERT_TRUE(limed_[1]->AwaitLog("will have 10 KV pages of each layer")) << limed_[1]->log();
  EXPECT_TRUE(WIFSIGNALED(limed_[1]->End(SIGKILL)));
  Restart(1);
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
  EXPECT_THAT(limed_[1]->log(), HasSubstr("KV pages of each layer"));
}

// What was generated is prompt then, and goes beyond what is kept.
TEST_F(FaultTest, EvictedKvIsComputedAgainAfterALoss) {
  dir_.Write("plan.json", ToJsonText(EvictingPlan()));
  const std::unique_ptr<Lime> run = Begin();
  AwaitSteps(200);
  EXPECT_TRUE(WIFSIGNALED(limed_[1]->End(SIGKILL)));
  Restart(1);
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  const std::string log = limed_[1]->log(), joins = "will join in slot 0: ";
  const size_t at = log.find(joins);
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_GT(std::atoi(log.c_str() + at + joins.size()), 64) << "of which all are kept";
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
}

TEST_F(FaultTest, KvThatHasGrownIsPlannedWithoutALostDevice) {
  dir_.Write("plan.json", ToJsonText(GrowingPlan()));
  const std::unique_ptr<Lime> run = Begin({"--patience", "0.2"});
  ASSERT_TRUE(limed_[1]->AwaitLog("will have 10 KV pages of each layer")) << limed_[1]->log();
  EXPECT_TRUE(WIFSIGNALED(limed_[1]->End(SIGKILL)));
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  EXPECT_EQ(answer.Json()["plan"]["kv_levels"].size(), 1u) << "all of it from the start";
}

// KV that has left its device's memory, and a device that is killed then.
class AwayKv : public FaultTest, public ::testing::WithParamInterface<KvFrom> {};

TEST_P(AwayKv, IsMadeAgainAfterALoss) {
  dir_.Write("plan.json", ToJsonText(SpillingPlan(GetParam())));
  const std::unique_ptr<Lime> run = Begin();
  ASSERT_TRUE(limed_[1]->AwaitLog("will have 28 KV pages of each layer")) << limed_[1]->log();
  EXPECT_TRUE(WIFSIGNALED(limed_[1]->End(SIGKILL)));
  Restart(1);
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
  const nlohmann::json root = answer.Json();  // the loop walks in it
  for (const auto& device : root["devices"]) {
    const bool on_disk = GetParam() == KvFrom::kDisks || device["name"] == "c";
    EXPECT_EQ(device["kv_read_bytes"] > 0, on_disk) << device;
    EXPECT_EQ(device["kv_fetched_bytes"] > 0, !on_disk && GetParam() == KvFrom::kHostsThatSendBack) << device;
  }
}

INSTANTIATE_TEST_SUITE_P(FromAnywhere, AwayKv, ::testing::Values(KvFrom::kDisks, KvFrom::kHostsThatAttend, KvFrom::kHostsThatSendBack));

TEST_F(FaultTest, ADeviceThatStandsStillForAMomentIsWaitedFor) {
  const std::unique_ptr<Lime> run = Begin();
  limed_[1]->Signal(SIGSTOP);
  std::this_thread::sleep_for(700ms);  // less than it takes to count as lost
  limed_[1]->Signal(SIGCONT);
  ExpectNothingLost(run->Wait());
}

TEST_F(FaultTest, ADeviceThatStandsStillForTooLongIsLostAndComesBack) {
  const std::unique_ptr<Lime> run = Begin();
  limed_[1]->Signal(SIGSTOP);
  EXPECT_TRUE(run->AwaitErr("the requests wait")) << run->err();
  limed_[1]->Signal(SIGCONT);
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
  EXPECT_THAT(answer.err, HasSubstr("the devices have kept the KV of "));
}

TEST_F(FaultTest, WhereThereIsNoPlanWithoutTheDeviceTheRunEndsWithItsName) {
  WriteCluster(/*profiles=*/false);
  const std::unique_ptr<Lime> run = Begin({"--patience", "0.2", "--give-up", "1"});
  const auto killed = std::chrono::steady_clock::now();
  EXPECT_TRUE(WIFSIGNALED(limed_[1]->End(SIGKILL)));
  const Answer answer = run->Wait();
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_THAT(answer.err, HasSubstr("device \"b\" is missing"));
  EXPECT_THAT(answer.err, HasSubstr("device \"a\" was never measured"));
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 15s);
  Restart(1);
  EXPECT_EQ(Call(OverCluster({"run", "--model", kModel, "--prompt", "Once", "--max-tokens", "4", "--context", "512"})).exit_code, 0);
}

TEST_F(FaultTest, DevicesThatTheirCoordinatorHasLeftAreFreeForTheNext) {
  const std::unique_ptr<Lime> run = Begin();
  const int64_t used = limed_[0]->ResidentBytes();
  kill(run->pid(), SIGKILL);
  EXPECT_NE(run->Wait().exit_code, 0);
  for (const auto& limed : limed_) EXPECT_TRUE(limed->AwaitLog("has unloaded epoch"));
  EXPECT_LT(limed_[0]->ResidentBytes(), used);
  ExpectNothingLost(Call(OverCluster(LongRun())));
}

}  // namespace
}  // namespace lime
