// `lime run --cluster` with linear attention: after a failure that no device has lost its memory to,
// requests continue at the newest snapshot of their states.

#include <csignal>
#include <string>
#include <vector>

#include "tests/integration/programs/run_cluster.h"
#include "tests/skips.h"

namespace lime {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class ClusterStatesTest : public ClusterRunTest {
 protected:
  void SetUp() override {
    LIME_SKIP_WITHOUT_SHARED(SharedDir() / "families/qwen3_5-tiny");
    model_ = SharedDir() / "families/qwen3_5-tiny";
    for (int d = 0; d < kDevices; ++d) limed_.push_back(std::make_unique<Limed>(Name(d)));
    WriteCluster();
  }

  std::vector<std::string> Run(const std::string& tokens) const {
    return {"run", "--model", model_, "--prompt", "Once upon a time", "--max-tokens", tokens, "--json", "--ignore-eos", "--seed", "11"};
  }

  // The answer of a run whose second device stands still for too long in the middle of it.
  Answer AfterAFailure(int32_t snapshots) {
    dir_.Write("plan.json", ToJsonText(PlanInTurns(model_, kDevices, {.model_name = "states", .state_snapshots = snapshots})));
    Lime run(OverCluster(Run("400")));
    AwaitSteps(60);
    limed_[1]->Signal(SIGSTOP);
    EXPECT_TRUE(run.AwaitErr("the requests wait")) << run.err();
    limed_[1]->Signal(SIGCONT);
    const Answer answer = run.Wait(), alone = Call(Run("400"));
    EXPECT_EQ(alone.exit_code, 0) << alone.err;
    EXPECT_EQ(answer.exit_code, 0) << answer.err;
    if (answer.exit_code == 0) {
      EXPECT_EQ(answer.Json()["token_ids"], alone.Json()["token_ids"]);
      EXPECT_EQ(answer.Json()["recoveries"], 1);
      EXPECT_EQ(answer.Json()["plan"]["state_snapshots"], snapshots);
    }
    return answer;
  }
};

TEST_F(ClusterStatesTest, ARequestContinuesAtASnapshotAfterAFailure) {
  EXPECT_THAT(AfterAFailure(3).err, ContainsRegex("the devices have kept the KV of [1-9][0-9]* tokens"));
}

TEST_F(ClusterStatesTest, WithoutSnapshotsItIsComputedAgain) {
  EXPECT_THAT(AfterAFailure(0).err, Not(HasSubstr("have kept the KV")));
}

TEST_F(ClusterStatesTest, APlanHasSnapshotsIfItsStepTakesNoLonger) {
  std::vector<std::string> call = Run("4");
  call.insert(call.end(), {"--cluster", dir_ / "cluster.toml"});
  const Answer answer = Call(call);
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_EQ(answer.Json()["plan"]["state_snapshots"], 3);
}

}  // namespace
}  // namespace lime
