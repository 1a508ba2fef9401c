// The way from `lime up` over `profile` and `push` to `run`, with keys, over three real daemons
// whose memory together is smaller than the model: with stores that are empty at first, and with
// weights that devices have.

#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "testbed/make_model/make_model.h"
#include "tests/integration/programs/free_port.h"
#include "tests/integration/programs/lime_process.h"

namespace lime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr int kDevices = 3;
constexpr char kBudget[] = "124MiB";  // of which limed itself takes about 30

std::string Name(int device) {
  return std::string(1, static_cast<char>('a' + device));
}

class StoreClusterTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_dir_ = new TempDir;
    MakeModelOptions options;
    options.config = {.num_layers = 12,
                      .hidden_size = 1024,
                      .num_heads = 8,
                      .num_kv_heads = 4,
                      .intermediate_size = 2816,
                      .vocab_size = 4096,
                      .max_positions = 4096};
    options.shards = 2;
    ASSERT_TRUE(MakeModel(options, Model()).ok());  // 300 MB
  }
  static void TearDownTestSuite() { delete model_dir_; }
  static std::string Model() { return *model_dir_ / "model"; }

  void SetUp() override {
    setenv("XDG_STATE_HOME", dir_.path().c_str(), 1);
    for (int d = 0; d < kDevices; ++d) ports_.push_back(FreePort());
    WriteCluster({});
    const Answer keys = Call({"keys", "--cluster", Cluster(), "--out", dir_ / "keys"});
    ASSERT_EQ(keys.exit_code, 0) << keys.err;
  }
  void TearDown() override { Over({"down"}); }

  std::string Cluster() const { return dir_ / "trio.toml"; }
  std::string Store(int device) const { return dir_ / absl::StrCat("store_", Name(device)); }
  // Of each device its weights; those that are not named have a store.
  void WriteCluster(const std::vector<std::string>& weights) {
    std::string text = absl::StrCat("[cluster]\nname = \"trio\"\nmodel = \"", Model(), "\"\ntls = \"keys\"\n");
    for (int d = 0; d < kDevices; ++d) {
      const bool has = static_cast<size_t>(d) < weights.size() && !weights[static_cast<size_t>(d)].empty();
      absl::StrAppend(
          &text, "[[device]]\nname = \"", Name(d), "\"\naddress = \"127.0.0.1:", ports_[static_cast<size_t>(d)], "\"\nmemory = \"", kBudget,
          "\"\nthreads = 1\n",
          has ? absl::StrCat("weights = \"", weights[static_cast<size_t>(d)], "\"\n") : absl::StrCat("store = \"", Store(d), "\"\n"));
    }
    dir_.Write("trio.toml", text);
  }
  // What was pushed to a device; empty where nothing was.
  std::string Held(int d) const {
    const fs::directory_iterator held(Store(d));
    return held == fs::directory_iterator() ? "" : held->path().string();
  }
  Answer Over(std::vector<std::string> words) const {
    words.insert(words.end(), {"--cluster", Cluster()});
    return Call(words);
  }
  json Done(std::vector<std::string> words) const {
    words.push_back("--json");
    const Answer answer = Over(words);
    EXPECT_EQ(answer.exit_code, 0) << words.front() << ": " << answer.err;
    return answer.Json();
  }
  void Up() const {
    const Answer up = Over({"up"});
    ASSERT_EQ(up.exit_code, 0) << up.err;
  }
  // Devices of one machine measure one after the other, for half a minute: once is enough where a
  // test is about something else.
  void UpAndProfile() {
    Up();
    if (measured_.empty()) Profile(), measured_ = dir_.Read("trio.profiles.json");
    dir_.Write("trio.profiles.json", measured_);
  }
  void Profile() const {
    const Answer profile = Over({"profile", "--seconds", "0.3", "--link-seconds", "0.1"});
    ASSERT_EQ(profile.exit_code, 0) << profile.err;
    EXPECT_EQ(profile.err, "");
    const json devices = Done({"devices"});
    for (const json& device : devices["devices"]) EXPECT_GT(device["disk_bytes_per_second"], 0) << device["name"];
  }
  static std::vector<std::string> RunWords(std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"run", "--prompt", "Once upon a time", "--max-tokens", "8", "--ignore-eos", "--hash-logits"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  json RunOfOneProcess() const {
    std::vector<std::string> words = RunWords({"--model", Model(), "--json"});
    return Call(words).Json();
  }
  void ExpectSameText(const json& run) const {
    const json alone = RunOfOneProcess();
    for (const char* field : {"token_ids", "logits_xxh3"}) EXPECT_EQ(run[field], alone[field]) << field;
  }
  pid_t PidOf(int device) const { return std::atoi(dir_.Read("lime/trio/" + Name(device) + ".pid").c_str()); }

  static inline TempDir* model_dir_ = nullptr;
  static inline std::string measured_;
  TempDir dir_;
  std::vector<int> ports_;
};

TEST_F(StoreClusterTest, WhatWasPushedIsWhatRunsPlanFor) {
  Up();
  Profile();
  for (int d = 0; d < kDevices; ++d) EXPECT_TRUE(!fs::exists(Store(d)) || fs::is_empty(Store(d))) << "measuring leaves nothing behind";
  const json pushed = Done({"push"});
  EXPECT_GT(pushed["sent_bytes"], 0);
  EXPECT_EQ(Done({"push"})["sent_bytes"], 0) << "the same words, the same plan";
  const json run = Done(RunWords());
  EXPECT_THAT((std::vector<std::string>{"held", "best"}), ::testing::Contains(run["plan"]["source"].get<std::string>()));
  EXPECT_GT(run["devices"].size(), 1u);
  ExpectSameText(run);
  Profile();  // through a disk that holds some blocks, and holes
  EXPECT_EQ(Done({"push"})["devices"].size(), 3u);
  ExpectSameText(Done(RunWords()));
  ExpectSameText(Done(RunWords({"--push"})));
  const Answer scored = Over({"score", "--ids", "1,2,3,4", "--json"});
  EXPECT_EQ(scored.exit_code, 0) << scored.err;
}

TEST_F(StoreClusterTest, ARunWithoutItsBlocksSaysWhatToTypeAndThatHelps) {
  UpAndProfile();
  const Answer refused = Over(RunWords());
  ExpectRefused(refused, 1, "blocks that the plan needs here");
  EXPECT_THAT(refused.err, HasSubstr("give --push"));
  const size_t at = refused.err.find("lime push");
  ASSERT_NE(at, std::string::npos) << refused.err;
  std::vector<std::string> words = absl::StrSplit(refused.err.substr(at + 5, refused.err.find('\n', at) - at - 5), ' ');
  const Answer pushed = Call(words);
  ASSERT_EQ(pushed.exit_code, 0) << pushed.err;
  ExpectSameText(Done(RunWords()));
}

TEST_F(StoreClusterTest, ARunSendsWhatIsMissingWhereItIsAsked) {
  UpAndProfile();
  ExpectSameText(Done(RunWords({"--push"})));
  ExpectSameText(Done(RunWords()));
}

TEST_F(StoreClusterTest, ADeviceThatIsDownIsNamedAndCanBeLeftOut) {
  UpAndProfile();
  ASSERT_EQ(Over({"push"}).exit_code, 0);
  kill(PidOf(2), SIGKILL);
  for (const std::vector<std::string>& words : {RunWords(), {"score", "--ids", "1,2"}, {"push"}}) {
    const Answer down = Over(words);
    ExpectRefused(down, 1, "device \"c\" at 127.0.0.1:");
    EXPECT_THAT(down.err, HasSubstr("--without c")) << words.front();
  }
  ExpectSameText(Done(RunWords({"--without", "c", "--push"})));
  ExpectSameText(Done(RunWords({"--without", "c"})));
  const Answer plan = Over({"plan", "--without", "c", "--tokens", "64", "--json"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, ::testing::Not(HasSubstr("\"c\"")));
  ExpectRefused(Over(RunWords({"--without", "d"})), 2, "--without d: there is no such device; the devices are a, b, c");
}

TEST_F(StoreClusterTest, WeightsOnTheDevicesAreReadWhereTheyLie) {
  WriteCluster({Model(), Model(), Model()});
  Up();
  Profile();
  const json run = Done(RunWords());
  EXPECT_EQ(run["plan"]["source"], "best");
  ExpectSameText(run);
}

TEST_F(StoreClusterTest, AStoreWithTheWholeModelMayBeNamedAsWeightsAndOneWithAPartSaysWhatToDo) {
  UpAndProfile();
  ASSERT_EQ(Over({"push"}).exit_code, 0);
  std::vector<std::string> parts;  // of the last device alone that holds one: a plan needs not all of them
  for (int d = 0; d < kDevices; ++d) {
    if (!Held(d).empty()) parts = std::vector<std::string>(static_cast<size_t>(d)), parts.push_back(Held(d));
  }
  ASSERT_FALSE(parts.empty());
  ASSERT_EQ(Over({"down"}).exit_code, 0);
  WriteCluster(parts);
  UpAndProfile();
  const json run = Done(RunWords());  // with the part that it holds
  ExpectSameText(run);
  ASSERT_EQ(Over({"down"}).exit_code, 0);
  WriteCluster({});
  ASSERT_EQ(Over({"up"}).exit_code, 0);
  ASSERT_EQ(Over({"push", "--all"}).exit_code, 0);
  ASSERT_EQ(Over({"down"}).exit_code, 0);
  std::vector<std::string> folders(kDevices);
  for (int d = 0; d < kDevices; ++d) folders[d] = Held(d);
  WriteCluster(folders);
  UpAndProfile();
  ExpectSameText(Done(RunWords()));
}

TEST_F(StoreClusterTest, ABudgetThatLeavesNothingToMeasureWithIsTheCauseThatIsSaid) {
  std::string text = dir_.Read("trio.toml");
  text.replace(text.find(kBudget), std::string(kBudget).size(), "32MiB");
  dir_.Write("trio.toml", text);
  const Answer up = Over({"up"});
  if (up.exit_code != 0) {  // refused where limed begins already
    EXPECT_THAT(up.err, HasSubstr("32"));
    return;
  }
  const Answer profile = Over({"profile", "--seconds", "0.3", "--link-seconds", "0.1"});
  ExpectRefused(profile, 1, "limed itself needs");
  EXPECT_THAT(profile.err, HasSubstr("32.00 MiB"));
}

}  // namespace
}  // namespace lime
