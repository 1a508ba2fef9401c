// `lime up`, `devices`, `profile --cluster`, `run --cluster` and `down` over real daemons of this machine.

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/integration/lime_process.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

const std::string kModel = LIME_SOURCE_DIR "/models/lime-fables";

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  bind(fd, reinterpret_cast<struct sockaddr*>(&address), length);
  getsockname(fd, reinterpret_cast<struct sockaddr*>(&address), &length);
  close(fd);
  return ntohs(address.sin_port);
}

// Whether the process does more than wait to be read by whoever has it for a child now.
bool Runs(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_ends = text.rfind(") ");
  return name_ends != text.npos && text[name_ends + 2] != 'Z';
}

class UpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("XDG_STATE_HOME", dir_.path().c_str(), 1);
    WriteCluster({kModel, kModel});
  }
  // `weights` empty: a store of its own instead.
  void WriteCluster(const std::vector<std::string>& weights) {
    std::string text = absl::StrCat("[cluster]\nname = \"pair\"\nmodel = \"", kModel, "\"\n");
    for (size_t i = 0; i < weights.size(); ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      absl::StrAppend(&text, "[[device]]\nname = \"", name, "\"\naddress = \"127.0.0.1:", FreePort(),
                      "\"\nmemory = \"1GiB\"\nthreads = 1\n",
                      weights[i].empty() ? absl::StrCat("store = \"", dir_ / ("store_" + name), "\"\n")
                                         : absl::StrCat("weights = \"", weights[i], "\"\n"));
    }
    dir_.Write("pair.toml", text);
  }
  void TearDown() override { Over({"down"}); }

  Answer Over(std::vector<std::string> words) const {
    words.insert(words.end(), {"--cluster", dir_ / "pair.toml"});
    return Call(words);
  }
  pid_t PidOf(const std::string& name) const { return std::atoi(dir_.Read("lime/pair/" + name + ".pid").c_str()); }

  TempDir dir_;
};

TEST_F(UpTest, DevicesComeUpAreMeasuredRunAndGoDown) {
  EXPECT_EQ(Over({"devices", "--json"}).exit_code, 1);  // nobody answers yet
  const Answer up = Over({"up"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_THAT(up.out, HasSubstr("device a listens on port"));
  const pid_t a = PidOf("a");
  ASSERT_GT(a, 0);
  EXPECT_TRUE(Runs(a));

  const Answer again = Over({"up"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("device a runs already"));
  EXPECT_EQ(PidOf("a"), a);

  ExpectRefused(Over({"run", "--model", kModel, "--prompt", "Once"}), 1, "was never measured; run `lime profile --cluster");
  const Answer profile = Over({"profile", "--seconds", "0.2", "--link-seconds", "0.1", "--json"});
  ASSERT_EQ(profile.exit_code, 0) << profile.err;
  const nlohmann::json measured = profile.Json()["devices"];
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_GT(measured[0]["runtime_bytes"], 10'000'000);
  EXPECT_EQ(measured[0]["profile"]["links"][0]["peer"], "b");
  EXPECT_GT(measured[0]["profile"]["links"][0]["bytes_per_second"], 1e7);
  EXPECT_GT(measured[1]["profile"]["links"][0]["latency_ms"], 0);
  EXPECT_EQ(measured[0]["profile"]["models"].size(), 1u);

  const Answer run = Over({"run", "--model", kModel, "--prompt", "Once upon a time", "--max-tokens", "8", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.Json()["completion_tokens"], 8);

  const Answer devices = Over({"devices", "--json"});
  ASSERT_EQ(devices.exit_code, 0) << devices.err;
  for (const nlohmann::json& device : devices.Json()["devices"]) {
    EXPECT_EQ(device["answers"], true);
    EXPECT_EQ(device["epoch"], -1);
    EXPECT_EQ(device["memory_bytes"], int64_t{1} << 30);
    EXPECT_NE(device["numerics_id"], "");
    EXPECT_GT(device["disk_bytes_per_second"], 0);
  }

  const Answer down = Over({"down"});
  EXPECT_EQ(down.exit_code, 0) << down.err;
  EXPECT_THAT(down.out, HasSubstr("device b has ended"));
  EXPECT_FALSE(Runs(a));
  const Answer still = Over({"down"});
  EXPECT_EQ(still.exit_code, 0) << still.err;
  EXPECT_THAT(still.out, HasSubstr("device b does not run"));
}

TEST_F(UpTest, ADeviceWithAStoreIsSentItsWeights) {
  WriteCluster({""});
  ASSERT_EQ(Over({"up"}).exit_code, 0);
  const Answer profile = Over({"profile", "--seconds", "0.2"});
  ASSERT_EQ(profile.exit_code, 0) << profile.err;
  const std::vector<std::string> run = {"run", "--model", kModel, "--prompt", "Once upon a time", "--max-tokens", "4", "--patience", "1"};
  ExpectRefused(Over(run), 1, "lime push");
  const Answer push = Over({"push", "--model", kModel});
  ASSERT_EQ(push.exit_code, 0) << push.err;
  EXPECT_FALSE(std::filesystem::is_empty(dir_ / "store_a"));
  const Answer ran = Over(run);
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
}

TEST_F(UpTest, DownLeavesAProcessAloneThatOnlyHasTheNumber) {
  std::filesystem::create_directories(dir_ / "lime/pair");
  const pid_t other = fork();
  if (other == 0) {
    pause();
    _exit(0);
  }
  dir_.Write("lime/pair/a.pid", absl::StrCat(other, "\n"));
  EXPECT_EQ(Over({"down"}).exit_code, 0);
  EXPECT_EQ(kill(other, 0), 0);
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

TEST_F(UpTest, WhatDoesNotStartIsASentenceWithItsLog) {
  std::string text = dir_.Read("pair.toml");
  text.replace(text.find("address = \"127.0.0.1"), 20, "address = \"203.0.113.9");  // not of this machine
  dir_.Write("pair.toml", text);
  const Answer answer = Over({"up", "--insecure"});
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_THAT(answer.err, HasSubstr("device \"a\" is not up"));
  EXPECT_THAT(answer.err, HasSubstr("cannot listen on"));
  EXPECT_THAT(answer.err, HasSubstr("a.log"));
  EXPECT_THAT(answer.out, HasSubstr("device b listens"));
}

}  // namespace
}  // namespace lime
