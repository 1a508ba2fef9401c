// `lime demo`: three daemons that stream give the bits of one process, and none of them outlives
// the command.

#include <signal.h>
#include <sys/prctl.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "tests/integration/programs/lime_process.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class DemoTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); }  // daemons that are left behind become ours

  // Whether nothing that the command started lives, after a moment.
  static bool NobodyIsLeft() {
    for (int i = 0; i < 200; ++i) {
      const pid_t ended = waitpid(-1, nullptr, WNOHANG);
      if (ended < 0) return errno == ECHILD;
      if (ended == 0) std::this_thread::sleep_for(25ms);
    }
    return false;
  }
  static void AwaitPlan(const Lime& demo) {
    for (int i = 0; i < 4000 && demo.out().find("layers in order of use") == std::string::npos; ++i) std::this_thread::sleep_for(25ms);
  }
};

TEST_F(DemoTest, EveryDeviceStreamsWithinItsBudgetAndTheBitsAreThoseOfOneProcess) {
  const Answer answer = Call({"demo", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const nlohmann::json root = answer.Json();
  EXPECT_EQ(root["logits_xxh3"], root["one_process"]["logits_xxh3"]);
  EXPECT_EQ(root["token_ids"].size(), 96u);
  EXPECT_GT(root["predicted_ms_per_token"], 0);
  ASSERT_EQ(root["devices"].size(), 3u);
  for (const nlohmann::json& device : root["devices"]) {
    EXPECT_GT(device["bytes_read"], 96 * 100'000) << device;
    EXPECT_LE(device["peak_rss_bytes"], device["budget_bytes"]) << device;
  }
  EXPECT_TRUE(NobodyIsLeft());
}

TEST_F(DemoTest, AnInterruptEndsTheDaemonsToo) {
  Lime demo({"demo"});
  AwaitPlan(demo);
  kill(demo.pid(), SIGINT);
  const Answer answer = demo.Wait();
  EXPECT_EQ(answer.exit_code, 130) << answer.err;
  EXPECT_THAT(answer.err, HasSubstr("interrupted"));
  EXPECT_TRUE(NobodyIsLeft());
}

TEST_F(DemoTest, DaemonsEndWithACommandThatIsKilled) {
  Lime demo({"demo"});
  AwaitPlan(demo);
  kill(demo.pid(), SIGKILL);
  const Answer answer = demo.Wait();
  EXPECT_EQ(answer.exit_code, 128 + SIGKILL) << answer.err << answer.out;
  EXPECT_TRUE(NobodyIsLeft());
}

TEST_F(DemoTest, AModelThatIsNoneIsASentence) {
  ExpectRefused(Call({"demo", "--model", "/nowhere"}), 2, "/nowhere");
}

}  // namespace
}  // namespace lime
