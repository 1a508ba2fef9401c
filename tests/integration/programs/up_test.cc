// `lime up`, `devices`, `profile --cluster`, `run --cluster` and `down` over real daemons of this
// machine.

#include <signal.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "testbed/make_model/make_model.h"
#include "tests/cases.h"
#include "tests/integration/programs/lime_process.h"
#include "tests/integration/programs/loopback_sshd.h"
#include "tests/skips.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kModel = LIME_SOURCE_DIR "/models/lime-fables";

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
  // The first place in the file.
  void Edit(const std::string& what, const std::string& into) {
    std::string text = dir_.Read("pair.toml");
    ASSERT_NE(text.find(what), std::string::npos) << text;
    dir_.Write("pair.toml", text.replace(text.find(what), what.size(), into));
  }
  int PortOf(const std::string& name) const {
    const std::string text = dir_.Read("pair.toml");
    const size_t at = text.find(absl::StrCat("name = \"", name, "\"\naddress = \"127.0.0.1:"));
    return std::atoi(text.c_str() + text.find("127.0.0.1:", at) + 10);
  }
  pid_t StartByHand(const std::string& name) const {
    const std::string limed = std::filesystem::path(LIME_BINARY).parent_path() / "limed", listen = absl::StrCat("127.0.0.1:", PortOf(name));
    const pid_t pid = fork();
    if (pid != 0) return pid;
    execl(limed.c_str(), "limed", "--name", name.c_str(), "--listen", listen.c_str(), "--memory", "512MiB", "--threads", "1", "--model",
          kModel.c_str(), "--log", "error", nullptr);
    _exit(127);
  }
  bool AwaitAnswer() const {
    for (int i = 0; i < 20 && Over({"devices"}).exit_code != 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return Over({"devices"}).exit_code == 0;
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
  const nlohmann::json seen = devices.Json()["devices"];
  ASSERT_EQ(seen.size(), 2u);
  for (const nlohmann::json& device : seen) {
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

TEST_F(UpTest, TheBackendThatTheFileNamesComputes) {
  if (!std::filesystem::exists(std::filesystem::path(LIME_BINARY).parent_path() / "liblime_torch.so"))
    GTEST_SKIP() << "liblime_torch.so was not built";
  WriteCluster({kModel});
  Edit("threads = 1\n", "threads = 1\nbackend = \"cuda\"\n");
  ExpectRefused(Over({"up"}), 2, "\"backend\" = \"cuda\" is none of cpu, torch (torch where its module liblime_torch.so is installed)");
  Edit("cuda", "torch");
  ASSERT_EQ(Over({"up"}).exit_code, 0);
  const Answer profile = Over({"profile", "--seconds", "0.2"});
  ASSERT_EQ(profile.exit_code, 0) << profile.err;
  const nlohmann::json device = Over({"devices", "--json"}).Json()["devices"][0];
  EXPECT_EQ(device["backend"], "torch");
  EXPECT_EQ(device["numerics_id"], "torch");
  const Answer run = Over({"run", "--model", kModel, "--prompt", "Once upon a time", "--max-tokens", "4", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.Json()["completion_tokens"], 4);
  Edit("torch", "cpu");
  const Answer again = Over({"up"});
  EXPECT_THAT(again.out + again.err, HasSubstr("backend torch (the file says cpu)"));
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

  const nlohmann::json held = Over({"store", "--json"}).Json()["devices"][0];
  EXPECT_EQ(held["store"], dir_ / "store_a");
  ASSERT_EQ(held["models"].size(), 1u) << held;
  EXPECT_EQ(held["models"][0]["name"], "lime-fables");
  EXPECT_EQ(held["models"][0]["blocks_held"], held["models"][0]["blocks"]);
  EXPECT_LT(held["models"][0]["unused_seconds"], 60);
  EXPECT_GT(held["free_bytes"], 0);
  EXPECT_THAT(Over({"store"}).out, HasSubstr("lime-fables"));
  ExpectRefused(Over({"store", "--remove", "other"}), 1, "no device holds \"other\"; the devices hold lime-fables (");
  ExpectRefused(Over({"store", "--remove", "lime-fables", "--device", "x"}), 2, "has no such device");
  const Answer removed = Over({"store", "--remove", "lime-fables", "--json"});
  ASSERT_EQ(removed.exit_code, 0) << removed.err;
  EXPECT_EQ(removed.Json()["removed"][0]["freed_bytes"], held["models"][0]["bytes"]);
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "store_a"));
  EXPECT_THAT(Over({"store"}).out, HasSubstr("a holds nothing"));
  ExpectRefused(Over(run), 1, "lime push");
}

TEST_F(UpTest, AnIdleDaemonHoldsNoMoreAfterPushesThanBefore) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps memory that the process has given back";
  MakeModelOptions large;
  large.config.num_layers = 8, large.config.hidden_size = 512, large.config.intermediate_size = 1536;
  ASSERT_TRUE(MakeModel(large, dir_ / "large").ok());
  WriteCluster({""});
  ASSERT_EQ(Over({"up"}).exit_code, 0);
  const auto held = [this] { return Over({"devices", "--json"}).Json()["devices"][0]["runtime_bytes"].get<Bytes>(); };
  const auto push = [this] {
    std::filesystem::remove_all(dir_ / "store_a");
    std::filesystem::create_directory(dir_ / "store_a");
    const Answer pushed = Over({"push", "--all", "--model", dir_ / "large"});
    EXPECT_EQ(pushed.exit_code, 0) << pushed.err;
  };
  push();  // threads and tables of the first call stay
  const Bytes before = held();
  for (int i = 0; i < 3; ++i) push();
  EXPECT_LT(held(), before + 6 * kMiB);
}

TEST_F(UpTest, PushingToAStoreThatMayNotBeWrittenIsOneSentenceAtOnce) {
  WriteCluster({""});
  ASSERT_EQ(Over({"up"}).exit_code, 0);
  std::filesystem::remove_all(dir_ / "store_a");
  dir_.Write("store_a", "a file where a folder should be: not even root may write there");
  const Answer push = Over({"push", "--model", kModel, "--all"});
  ExpectRefused(push, 1, "cannot make the folder");
  EXPECT_THAT(push.err, Not(HasSubstr("is limed running")));
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
  const int other = socket(AF_INET, SOCK_STREAM, 0);  // another program has the port
  struct sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(PortOf("a")));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(other, reinterpret_cast<struct sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(other, 1), 0);
  const Answer answer = Over({"up"});
  close(other);
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_THAT(answer.err, HasSubstr("device \"a\" is not up"));
  EXPECT_THAT(answer.err, HasSubstr("a.log"));
  EXPECT_THAT(answer.out, HasSubstr("device b listens"));
}

TEST_F(UpTest, ADeviceOfAnotherMachineWithoutSshIsNotStartedHere) {
  Edit("address = \"127.0.0.1", "address = \"203.0.113.9");
  const Answer answer = Over({"up", "--insecure"});
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_THAT(answer.err, HasSubstr("203.0.113.9 is not an address of this machine"));
  EXPECT_THAT(answer.err, HasSubstr("add ssh = \"USER@203.0.113.9\" to it"));
  EXPECT_THAT(answer.err, HasSubstr("or start limed there"));
  EXPECT_THAT(answer.out, HasSubstr("device b listens"));
}

TEST_F(UpTest, EditedBudgetsAreToldAndTakenOverWhenAsked) {
  ASSERT_EQ(Over({"up"}).exit_code, 0);
  const pid_t a = PidOf("a"), b = PidOf("b");
  Edit("memory = \"1GiB\"", "memory = \"2GiB\"");  // of a
  Answer up = Over({"up"});
  EXPECT_EQ(up.exit_code, 0) << up.err;
  EXPECT_THAT(up.err, HasSubstr("device \"a\" runs with memory 1.00 GiB (the file says 2.00 GiB); `lime up --restart`"));
  EXPECT_THAT(up.err, Not(HasSubstr("\"b\"")));
  EXPECT_EQ(PidOf("a"), a);
  up = Over({"up", "--restart", "--json"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_EQ(up.Json()["devices"][0]["state"], "restarted");
  EXPECT_EQ(up.Json()["devices"][1]["state"], "running");
  EXPECT_NE(PidOf("a"), a);
  EXPECT_EQ(PidOf("b"), b);
  EXPECT_EQ(Over({"devices", "--json"}).Json()["devices"][0]["memory_bytes"], int64_t{2} << 30);
  EXPECT_EQ(Over({"up"}).err, "");
}

TEST_F(UpTest, ClustersOfOneNameAreDistinguished) {
  WriteCluster({kModel});
  ASSERT_EQ(Over({"up"}).exit_code, 0);
  const pid_t a = PidOf("a");
  const std::string first = dir_.Read("pair.toml");
  WriteCluster({kModel});
  dir_.Write("other.toml", dir_.Read("pair.toml"));
  dir_.Write("pair.toml", first);
  const auto other = [this](const std::string& command) { return Call({command, "--cluster", dir_ / "other.toml"}); };
  const std::string whose = absl::StrCat("started from ", dir_ / "pair.toml", " at 127.0.0.1:", PortOf("a"), ", process ", a);
  const Answer up = other("up");
  EXPECT_EQ(up.exit_code, 1) << up.out;
  EXPECT_THAT(up.err, HasSubstr(whose));
  EXPECT_THAT(up.err, HasSubstr("give this cluster a name of its own"));
  const Answer down = other("down");
  EXPECT_EQ(down.exit_code, 0) << down.err;
  EXPECT_THAT(down.out, HasSubstr("device a does not run"));
  EXPECT_THAT(down.out, HasSubstr(whose));
  EXPECT_TRUE(Runs(a));
  std::filesystem::rename(dir_ / "pair.toml", dir_ / "moved.toml");  // the same address and keys
  EXPECT_THAT(Call({"down", "--cluster", dir_ / "moved.toml"}).out, HasSubstr("device a has ended"));
}

TEST_F(UpTest, DownEndsWhatItsFileHasStartedWhateverTheFileSaysNow) {
  struct Case {
    const char *what, *into, *ended;
  };
  for (const auto& [what, into, ended] : {Case{"name = \"b\"", "name = \"renamed\"", "device b has ended"},
                                          Case{"name = \"pair\"", "name = \"trio\"", "device a has ended"}}) {
    SCOPED_TRACE(into);
    WriteCluster({kModel, kModel});
    ASSERT_EQ(Over({"up"}).exit_code, 0);
    const pid_t a = PidOf("a"), b = PidOf("b");
    Edit(what, into);
    const Answer down = Over({"down"});
    EXPECT_EQ(down.exit_code, 0) << down.err;
    EXPECT_THAT(down.out, HasSubstr(ended));
    EXPECT_THAT(down.out, HasSubstr("this file had started it"));
    EXPECT_FALSE(Runs(a) || Runs(b));
  }
  WriteCluster({kModel, kModel});
  ASSERT_EQ(Over({"up"}).exit_code, 0);
  const pid_t b = PidOf("b");
  const std::string text = dir_.Read("pair.toml");
  dir_.Write("pair.toml", text.substr(0, text.rfind("[[device]]")));
  const Answer down = Over({"down", "--json"});
  EXPECT_EQ(down.exit_code, 0) << down.err;
  EXPECT_EQ(down.Json()["devices"][1]["name"], "b");
  EXPECT_EQ(down.Json()["devices"][1]["state"], "ended");
  EXPECT_FALSE(Runs(b));
}

TEST_F(UpTest, PathsOfThisMachineAreRelativeToTheFileWhereverLimeIsCalled) {
  std::filesystem::create_directory_symlink(kModel, dir_ / "llama");
  WriteCluster({"llama", ""});
  Edit("store = \"" + dir_.path() + "/", "store = \"");
  ASSERT_EQ(Over({"up"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_directory(dir_ / "store_b"));
  EXPECT_FALSE(std::filesystem::exists("store_b"));
  EXPECT_EQ(Over({"up"}).err, "") << "no setting differs";
}

TEST_F(UpTest, DownReportsALimedThatAnswersByAnotherName) {
  WriteCluster({kModel});
  const pid_t limed = StartByHand("a");
  ASSERT_TRUE(AwaitAnswer());
  Edit("name = \"a\"", "name = \"c\"");
  ExpectRefused(Over({"down"}), 1, "the address of device \"c\": it calls itself \"a\"; end it where it was started");
  kill(limed, SIGTERM);
  waitpid(limed, nullptr, 0);
}

TEST_F(UpTest, WhatUpHasStartedIsKnownWhereItsFilesCannotBeFound) {
  WriteCluster({kModel});
  ASSERT_EQ(Over({"up"}).exit_code, 0);
  const char* const home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  unsetenv("XDG_STATE_HOME");
  setenv("HOME", "relative", 1);
  const Answer up = Over({"up"});
  setenv("XDG_STATE_HOME", dir_.path().c_str(), 1);
  home == nullptr ? unsetenv("HOME") : setenv("HOME", before.c_str(), 1);
  EXPECT_EQ(up.exit_code, 0) << up.err;
  EXPECT_THAT(up.out, HasSubstr(absl::StrCat("device a runs already at 127.0.0.1:", PortOf("a"), "; process ", PidOf("a"))));
  EXPECT_THAT(up.out, Not(HasSubstr("other means")));
}

TEST_F(UpTest, AValueThatLimedRefusesIsReportedWithItsLine) {
  const auto refusal = [this](const std::string& what, const std::string& into) {
    WriteCluster({kModel});
    Edit(what, into);
    const Answer up = Over({"up"});
    EXPECT_EQ(up.exit_code, 2) << up.err;
    return up.err;
  };
  const std::string where = absl::StrCat("lime: ", dir_ / "pair.toml", " line ");
  EXPECT_THAT(refusal("threads = 1", "threads = 1000"), HasSubstr(where + "8: device \"a\": threads = 1000 is outside 0 to "));
  EXPECT_THAT(refusal("1GiB", "15TiB"), HasSubstr(where + "7: device \"a\": memory = \"15TiB\": "));
  EXPECT_THAT(refusal("1GiB", "24MiB"), HasSubstr(where + "7: device \"a\": memory = \"24MiB\" is too small: limed itself needs"));
  EXPECT_THAT(refusal("weights = \"" + kModel, "weights = \"/nope"),
              HasSubstr(where + "9: device \"a\": weights = \"/nope\" is not a folder"));
  EXPECT_THAT(refusal("weights = \"" + kModel, "store = \"/nope/s"),
              HasSubstr(where + "9: device \"a\": store = \"/nope/s\" is not there"));
  EXPECT_THAT(refusal("weights", "tls = \"/nope\"\nweights"), HasSubstr(where + "4: device \"a\": "));
}

TEST_F(UpTest, ADaemonThatWasStartedOtherwiseIsReportedAsSuch) {
  WriteCluster({kModel});
  const pid_t limed = StartByHand("a");
  ASSERT_TRUE(AwaitAnswer());
  const Answer up = Over({"up"});
  EXPECT_EQ(up.exit_code, 0) << up.err;
  EXPECT_THAT(up.out, HasSubstr("device a runs already at 127.0.0.1:"));
  EXPECT_THAT(up.out, HasSubstr(absl::StrCat("as process ", limed)));
  EXPECT_THAT(up.err, HasSubstr("runs with memory 512.00 MiB (the file says 1.00 GiB)"));
  EXPECT_THAT(up.err, HasSubstr("restart it there"));
  const Answer down = Over({"down"});
  EXPECT_EQ(down.exit_code, 1);
  EXPECT_THAT(down.err, HasSubstr("device \"a\" still answers at 127.0.0.1:"));
  EXPECT_THAT(down.err, HasSubstr(absl::StrCat("`kill ", limed, "`")));
  EXPECT_TRUE(Runs(limed));
  kill(limed, SIGTERM);
  waitpid(limed, nullptr, 0);
  EXPECT_EQ(Over({"down"}).exit_code, 0);
}

TEST_F(UpTest, ADeviceOverSshComesUpIsReportedAndGoesDown) {
  LIME_SKIP_WITHOUT(LoopbackSshd::Installed(), "an SSH server (Debian: openssh-server, openssh-client)");
  const LoopbackSshd sshd("XDG_STATE_HOME=" + dir_ / "there");
  LIME_SKIP_WITHOUT(sshd.Answers(), "the right to run sshd");
  WriteCluster({kModel, kModel});
  const std::string limed = std::filesystem::path(LIME_BINARY).parent_path() / "limed";
  Edit("threads = 1\n", absl::StrCat("threads = 1\nssh = \"", sshd.Way(), "\"\nlimed = \"", limed, "\"\n"));  // a
  Answer up = Over({"up"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_THAT(up.out, HasSubstr("device a listens on port"));
  const pid_t there = std::atoi(dir_.Read("there/lime/pair/a.pid").c_str());
  EXPECT_TRUE(Runs(there));
  EXPECT_EQ(PidOf("a"), 0);
  EXPECT_EQ(Over({"devices", "--json"}).exit_code, 0);
  Edit("memory = \"1GiB\"", "memory = \"2GiB\"");
  up = Over({"up", "--restart"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_THAT(up.out, HasSubstr("started again"));
  EXPECT_FALSE(Runs(there));
  EXPECT_EQ(Over({"devices", "--json"}).Json()["devices"][0]["memory_bytes"], int64_t{2} << 30);
  const Answer down = Over({"down"});
  EXPECT_EQ(down.exit_code, 0) << down.err;
  EXPECT_THAT(down.out, HasSubstr("device a has ended"));
}

// A run whose text nobody reads: it waits in the middle of it, and goes on saying that it is there.
class HeldRun {
 public:
  HeldRun(std::vector<std::string> words, const std::string& err) {
    int ends[2];
    LIME_CHECK(pipe(ends) == 0);
    fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);
    const std::string filling(kPipeBytes - 100, '.');  // the prompt has room, and some tokens
    LIME_CHECK(write(ends[1], filling.data(), filling.size()) == static_cast<ssize_t>(filling.size()));
    words.insert(words.begin(), "lime");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(open(err.c_str(), O_CREAT | O_WRONLY, 0600), STDERR_FILENO);
      close(ends[0]);
      std::vector<char*> argv;
      argv.reserve(words.size() + 1);
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      execv(LIME_BINARY, argv.data());
      _exit(127);
    }
    close(ends[1]);
    text_ = ends[0];
  }
  ~HeldRun() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    close(text_);
  }
  HeldRun(const HeldRun&) = delete;

  // Reads all of its text; its exit code.
  int Wait() {
    char some[kPipeBytes];
    while (read(text_, some, sizeof(some)) > 0) {
    }
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  static constexpr int kPipeBytes = 4096;
  pid_t pid_ = 0;
  int text_ = -1;
};

// The next one is told who has the devices, and the first one who has taken them.
TEST_F(UpTest, TheUserOfAClusterIsReportedAndCanBeEnded) {
  ASSERT_EQ(Over({"up"}).exit_code, 0);
  EXPECT_THAT(Over({"unload"}).out, HasSubstr("had no plan"));
  ASSERT_EQ(Over({"profile", "--seconds", "0.1", "--link-seconds", "0.1"}).exit_code, 0);
  const std::vector<std::string> words = {"run",          "--model", kModel,         "--prompt",  "Once upon a time",
                                          "--max-tokens", "300",     "--ignore-eos", "--cluster", dir_ / "pair.toml"};
  HeldRun first(words, dir_ / "first.err");
  nlohmann::json used;
  for (int i = 0; i < 100 && used.is_null(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const nlohmann::json devices = Over({"devices", "--json"}).Json()["devices"];
    for (const nlohmann::json& device : devices) {
      if (device.contains("used_by")) used = device["used_by"];
    }
  }
  ASSERT_FALSE(used.is_null()) << dir_.Read("first.err");
  EXPECT_THAT(std::string(used["address"]), HasSubstr("127.0.0.1:"));
  EXPECT_NE(used["user"], "");
  EXPECT_THAT(Over({"devices"}).out, HasSubstr(" runs lime-fables for "));

  const Answer second = Call(words);
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr(absl::StrCat(" runs lime-fables for ", std::string(used["user"]), "@")));
  EXPECT_THAT(second.err, HasSubstr("lime unload --force"));
  EXPECT_THAT(second.err, Not(HasSubstr("waiting for it")));
  const Answer refused = Over({"unload"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("give --force to end it"));

  const Answer forced = Over({"unload", "--force"});
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_THAT(forced.out, HasSubstr(absl::StrCat("while it was used by ", std::string(used["user"]))));
  EXPECT_EQ(first.Wait(), 1);
  EXPECT_THAT(dir_.Read("first.err"), HasSubstr("has unloaded the plan with `lime unload --force`"));
  const nlohmann::json after = Over({"devices", "--json"}).Json()["devices"];
  ASSERT_EQ(after.size(), 2u);
  for (const nlohmann::json& device : after) EXPECT_EQ(device["epoch"], -1);
}

}  // namespace
}  // namespace lime
