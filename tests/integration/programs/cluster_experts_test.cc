// `lime run --cluster` over real daemons that divide the experts of every layer: the bits of one
// device, also if a device is killed in the middle of it.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "planner/plan/plan_blocks.h"
#include "tests/integration/programs/run_cluster.h"
#include "tests/skips.h"

namespace lime {
namespace {

class ClusterExpertsTest : public ClusterRunTest {
 protected:
  void SetUp() override {
    LIME_SKIP_WITHOUT_SHARED(SharedDir() / "families/qwen3_moe-tiny");
    model_ = SharedDir() / "families/qwen3_moe-tiny";
    for (int d = 0; d < kDevices; ++d) limed_.push_back(std::make_unique<Limed>(Name(d)));
    WriteCluster();
  }

  // The layers go round the first `owners` devices; `shares`: of the eight experts, by device.
  void WritePlan(int owners, std::vector<UnitShare> shares) {
    const Plan plan = PlanInTurns(model_, owners, {.model_name = "experts", .unit_places = 4, .unit_shares = std::move(shares)});
    EXPECT_TRUE(HasHostedUnits(plan));
    dir_.Write("plan.json", ToJsonText(plan));
  }

  std::vector<std::string> LongRun() const {
    return {"run",
            "--model",
            model_,
            "--prompt",
            "Once upon a time there was a fox",
            "--max-tokens",
            "400",
            "--context",
            "512",
            "--json",
            "--hash-logits",
            "--ignore-eos",
            "--seed",
            "11",
            "--temperature",
            "0.8"};
  }

  void ExpectTheBitsOfOne(const Answer& answer) const {
    const Answer alone = Call(LongRun());
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    for (const char* field : {"token_ids", "text", "logits_xxh3", "completion_tokens", "finish_reason"})
      EXPECT_EQ(answer.Json()[field], alone.Json()[field]) << field << "\n" << answer.err;
  }
};

TEST_F(ClusterExpertsTest, ADeviceWithoutAStageComputesExpertsForOneThatHasAll) {
  WritePlan(1, {{4, 2}, {4, 2}, {0, 0}});
  ExpectTheBitsOfOne(Call(OverCluster(LongRun())));
}

TEST_F(ClusterExpertsTest, ThreeDevicesComputeExpertsForEachOther) {
  WritePlan(3, {{3, 1}, {3, 2}, {2, 2}});
  ExpectTheBitsOfOne(Call(OverCluster(LongRun())));
}

class LostExperts : public ClusterExpertsTest, public ::testing::WithParamInterface<int> {};

TEST_P(LostExperts, AKilledDeviceCostsNoTokenAndNoBit) {
  WritePlan(3, {{3, 1}, {3, 2}, {2, 2}});
  Lime run(OverCluster(LongRun()));
  AwaitSteps(10);
  EXPECT_TRUE(WIFSIGNALED(limed_[static_cast<size_t>(GetParam())]->End(SIGKILL)));
  const int port = limed_[static_cast<size_t>(GetParam())]->port();
  limed_[static_cast<size_t>(GetParam())] = std::make_unique<Limed>(Name(GetParam()), port);
  const Answer answer = run.Wait();
  ExpectTheBitsOfOne(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
}

INSTANTIATE_TEST_SUITE_P(FirstAndLast, LostExperts, ::testing::Values(0, 2));

// The killed device has no stage: it only computes experts for others.
TEST_F(ClusterExpertsTest, ALostHostIsPlannedWithout) {
  WritePlan(2, {{3, 1}, {3, 2}, {2, 2}});
  std::vector<std::string> call = OverCluster(LongRun());
  call.insert(call.end(), {"--patience", "0.2"});
  Lime run(call);
  AwaitSteps(10);
  EXPECT_TRUE(WIFSIGNALED(limed_[2]->End(SIGKILL)));
  const Answer answer = run.Wait();
  ExpectTheBitsOfOne(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
}

}  // namespace
}  // namespace lime
