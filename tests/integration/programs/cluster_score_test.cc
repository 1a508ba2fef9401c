// `lime score` of a text in several windows has one hash and the same positions: in one process, over
// three daemons, and by a server over them of which one was killed.

#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/integration/programs/run_cluster.h"

namespace lime {
namespace {

using nlohmann::json;

class ClusterScoreTest : public ClusterRunTest {
 protected:
  static constexpr char kWindow[] = "128";

  void SetUp() override {
    ClusterRunTest::SetUp();
    std::string text;
    for (int i = 0; i < 30; ++i)
      absl::StrAppend(&text, "Fable ", i, ". A crow was thirsty, and found a pitcher with a little water in it. ");
    dir_.Write("text", text);
    const Answer alone = Call(Score({"--model", kModel, "--context", kWindow}));
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    alone_ = alone.Json();
    ASSERT_GT(alone_["positions"].size(), 2 * 128u) << "in three windows or more";
  }

  std::vector<std::string> Score(const std::vector<std::string>& more) const {
    std::vector<std::string> call = {"score", "--text-file", dir_ / "text", "--json"};
    call.insert(call.end(), more.begin(), more.end());
    return call;
  }
  std::vector<std::string> OverDevices() { return OverCluster(Score({"--model", kModel, "--context", kWindow})); }
  // Kills a device in the middle of a window, and starts it again.
  void Lose(int device) {
    AwaitSteps(20);
    EXPECT_TRUE(WIFSIGNALED(limed_[device]->End(SIGKILL)));
    limed_[device] = std::make_unique<Limed>(Name(device), limed_[device]->port());
  }
  void ExpectAsAlone(const Answer& answer) const {
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    EXPECT_EQ(answer.Json()["logits_xxh3"], alone_["logits_xxh3"]);
    EXPECT_EQ(answer.Json()["positions"], alone_["positions"]);
  }
  static int Head() { return InterleavedPlan().stages.back().device; }

  json alone_;
};

TEST_F(ClusterScoreTest, ThreeDevicesGiveTheHashOfOneProcess) {
  ExpectAsAlone(Call(OverDevices()));
}

TEST_F(ClusterScoreTest, AServerGivesTheSameWhileTheDeviceWithTheHeadIsLost) {
  Lime serve(OverCluster({"serve", "--model", kModel, "--port", "0", "--context", "512", "--parallel", "1", "--json"}));
  ASSERT_TRUE(serve.AwaitOut("}\n")) << serve.err();
  const std::string url = json::parse(serve.out()).value("url", "");
  const std::vector<std::string> call = Score({"--url", url, "--context", kWindow});
  Lime score(call);
  Lose(Head());
  ExpectAsAlone(score.Wait());
  ExpectAsAlone(Call(call));
  kill(serve.pid(), SIGTERM);
  const Answer end = serve.Wait();
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.err, ::testing::HasSubstr("installs the plan again"));
}

}  // namespace
}  // namespace lime
