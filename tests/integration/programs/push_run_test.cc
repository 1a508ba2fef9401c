// `lime push` to real daemons with empty stores, then `lime run --cluster` from what they took:
// tokens and logits of one process.

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "daemon/weights/checkpoint.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/problem/plan_problem.h"
#include "testbed/make_model/make_model.h"
#include "tests/integration/programs/lime_process.h"

namespace lime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr int kDevices = 3;

std::string Name(int device) {
  return std::string(1, static_cast<char>('a' + device));
}

// A daemon with a store, empty at first; ended with the test.
class StoringLimed {
 public:
  explicit StoringLimed(const std::string& name, std::vector<std::string> more = {}) : name_(name), more_(std::move(more)) { Begin(); }
  ~StoringLimed() { End(SIGTERM); }

  void Begin() {
    std::vector<std::string> call = {"limed",     "--name", name_,     "--listen", absl::StrCat("127.0.0.1:", port_),
                                     "--threads", "1",      "--store", store()};
    call.insert(call.end(), more_.begin(), more_.end());
    std::filesystem::remove(dir_ / "log");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(open((dir_ / "log").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600), STDERR_FILENO);
      dup2(STDERR_FILENO, STDOUT_FILENO);  // or a daemon that a killed test leaves would hold the pipe that ctest reads
      std::vector<char*> argv;
      argv.reserve(call.size() + 1);
      for (std::string& word : call) argv.push_back(word.data());
      argv.push_back(nullptr);
      execv(LIMED_BINARY, argv.data());
      _exit(127);
    }
    const std::string words = "listens on port ";
    ASSERT_TRUE(AwaitLog(words)) << log();
    port_ = std::atoi(log().c_str() + log().find(words) + words.size());
  }
  void End(int signal) {
    if (pid_ <= 0) return;
    kill(pid_, signal);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  int port() const { return port_; }
  bool AwaitLog(const std::string& words) const { return AwaitWords(dir_ / "log", words); }
  std::string log() const { return Slurp(dir_ / "log"); }
  std::string store() const { return dir_ / "store"; }

 private:
  const std::string name_;
  const std::vector<std::string> more_;
  TempDir dir_;
  pid_t pid_ = 0;
  int port_ = 0;
};

// The devices take turns, a few blocks each; every other part streams. `first` has the first turn.
Plan AlternatingPlan(const std::string& model, int turns, int first) {
  const auto spec = LoadModelSpec(model);
  EXPECT_TRUE(spec.ok()) << spec.status();
  std::vector<ClusterDevice> devices(kDevices);
  for (int d = 0; d < kDevices; ++d) {
    devices[d] = {.name = Name(d), .budget = 2 * kGiB, .runtime = 256 * kMiB, .activations = 64 * kMiB};
    devices[d].profile.read_bytes_per_second = 1e10;
    devices[d].profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
  }
  PlanRequest request{.model_name = "pushed", .context = 512, .batches = {1}, .part_bytes = 32 * kKiB, .prompt_tokens = 16};
  request.chunks = {8};
  const auto problem = MakePlanProblem(*spec, devices, request);
  EXPECT_TRUE(problem.ok()) << problem.status();
  PlanChoice choice{.batch = 1};
  choice.first_token = {.feasible = true, .ms = 1, .chunk_rows = 8, .chunks = 2, .chunks_per_sweep = 1};
  choice.stages.embedding_by_rows = true;
  const Instance& instance = problem->instance;
  std::vector<Stage>& stages = choice.stages.stages;
  for (int b = 0, begun = 0; b < instance.NumBlocks(); ++b) {
    const bool begins = b == 0 || (!instance.ContinuesBlock(b) && b * turns / instance.NumBlocks() >= begun);
    if (begins) stages.push_back({(first + begun++) % kDevices, b, b});
    stages.back().hi = b + 1;
    if (b % 2 == 1) choice.stages.streamed.push_back(b);
  }
  auto plan = MakePlan(*problem, choice);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan{};
}

class PushRunTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    options_.config.num_layers = 6;
    options_.config.tie_embeddings = true;
    options_.shards = 2;
    if (GetParam()) {
      model_ = LIME_SOURCE_DIR "/models/lime-fables";
    } else {
      ASSERT_TRUE(MakeModel(options_, model_ = dir_ / "model").ok());
    }
    WritePlan(9, 0);
    for (int d = 0; d < kDevices; ++d) limed_.push_back(std::make_unique<StoringLimed>(Name(d)));
    WriteCluster();
  }
  void WritePlan(int turns, int first) { dir_.Write("plan.json", ToJsonText(AlternatingPlan(model_, turns, first))); }
  void WriteCluster(const std::string& weights_of_a = "") {
    std::string text = "[cluster]\nname = \"test\"\n";
    for (int d = 0; d < kDevices; ++d) {
      absl::StrAppend(&text, "[[device]]\nname = \"", Name(d), "\"\naddress = \"127.0.0.1:", limed_[d]->port(), "\"\nmemory = \"2GiB\"\n");
      if (d == 0 && !weights_of_a.empty()) absl::StrAppend(&text, "weights = \"", weights_of_a, "\"\n");
    }
    dir_.Write("cluster.toml", text);
  }
  std::vector<std::string> OverCluster(std::vector<std::string> call) const {
    for (const std::string& more : {std::string("--model"), model_, std::string("--cluster"), dir_ / "cluster.toml", std::string("--plan"),
                                    dir_ / "plan.json", std::string("--json")})
      call.push_back(more);
    return call;
  }
  nlohmann::json Push(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), "push");
    const Answer answer = Call(OverCluster(more));
    EXPECT_EQ(answer.exit_code, 0) << answer.err;
    EXPECT_EQ(answer.err, "") << "quiet in a pipe";
    return answer.Json();
  }
  static std::vector<std::string> RunWords() {
    return {"run",       "--prompt", "Once upon a time there was a fox", "--max-tokens", "24", "--ignore-eos", "--hash-logits",
            "--context", "512"};
  }
  void ExpectTokensOfOneProcess() const {
    std::vector<std::string> alone_call = RunWords();
    for (const std::string& more : {std::string("--model"), model_, std::string("--json")}) alone_call.push_back(more);
    const Answer alone = Call(alone_call), cluster = Call(OverCluster(RunWords()));
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    ASSERT_EQ(cluster.exit_code, 0) << cluster.err;
    for (const char* field : {"token_ids", "logits_xxh3"}) EXPECT_EQ(cluster.Json()[field], alone.Json()[field]) << field;
  }

  TempDir dir_;
  MakeModelOptions options_;
  std::string model_;
  std::vector<std::unique_ptr<StoringLimed>> limed_;
};

TEST_P(PushRunTest, EachDeviceReceivesItsBlocksAndTheRunIsThatOfOneProcess) {
  const Answer before = Call(OverCluster(RunWords()));
  EXPECT_EQ(before.exit_code, 1);
  EXPECT_THAT(before.err, HasSubstr("lime push"));
  const nlohmann::json pushed = Push();
  int64_t sent = 0, needed = 0;
  for (const nlohmann::json& device : pushed["devices"]) {
    EXPECT_GT(device["sent_bytes"], 0) << pushed;
    EXPECT_EQ(device["sent_bytes"], device["needed_bytes"]) << pushed;
    sent += device["sent_bytes"].get<int64_t>(), needed += device["needed_bytes"].get<int64_t>();
  }
  EXPECT_EQ(pushed["sent_bytes"], sent);
  ExpectTokensOfOneProcess();
  EXPECT_EQ(Push()["sent_bytes"], 0);
  EXPECT_EQ(Push({"--quick"})["sent_bytes"], 0);
}

TEST_P(PushRunTest, AnotherPlanNeedsWhatItAddsAndSaysSo) {
  const int64_t first = Push()["sent_bytes"];
  WritePlan(9, 1);
  const Answer refused = Call(OverCluster(RunWords()));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("blocks that the plan needs here"));
  const int64_t second = Push()["sent_bytes"];
  EXPECT_GT(second, 0);
  ExpectTokensOfOneProcess();
  WritePlan(9, 0);
  EXPECT_EQ(Push()["sent_bytes"], 0) << "what the first plan needed is still there";
  const int64_t all = Push({"--all"})["sent_bytes"];
  EXPECT_GT(all, 0);
  const nlohmann::json pushed = Push({"--all"});
  EXPECT_EQ(pushed["sent_bytes"], 0);
  ASSERT_EQ(pushed["devices"].size(), kDevices);
  const int64_t needed = pushed["devices"][0]["needed_bytes"];
  for (const nlohmann::json& device : pushed["devices"]) EXPECT_EQ(device["needed_bytes"], needed);
  // The head is tied: the device that has the embedding in one plan and the head in the next gets
  // the bytes of both twice.
  const auto spec = LoadModelSpec(model_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const int64_t tied = 2 * spec->config.vocab_size * spec->config.hidden_size;
  EXPECT_EQ(first + second + all, kDevices * needed + (tied + 4095) / 4096 * 4096);
  ExpectTokensOfOneProcess();
}

TEST_P(PushRunTest, APathThatTheDeviceHasIsUsedAsItIs) {
  WriteCluster(model_);
  const nlohmann::json pushed = Push();
  EXPECT_EQ(pushed["devices"][0]["sent_bytes"], 0);
  EXPECT_EQ(pushed["devices"][0]["weights"], model_);
  EXPECT_GT(pushed["devices"][1]["sent_bytes"], 0);
  EXPECT_TRUE(std::filesystem::is_empty(limed_[0]->store()));  // limed makes the folder when it starts
  ExpectTokensOfOneProcess();
}

TEST_P(PushRunTest, ADeviceWhoseWeightsHaveOtherValuesIsRefusedByName) {
  if (GetParam()) GTEST_SKIP() << "there is no other model of this shape";
  MakeModelOptions options = options_;
  options.seed = 2;
  ASSERT_TRUE(MakeModel(options, dir_ / "tuned").ok());
  WriteCluster(dir_ / "tuned");
  Push();
  const Answer refused = Call(OverCluster(RunWords()));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.Json()["text"], nullptr) << "nothing is computed";
  EXPECT_THAT(refused.err, AllOf(HasSubstr("device \"a\" at 127.0.0.1:"),
                                 HasSubstr("the weights in " + dir_ / "tuned" + " differ from those of the coordinator's \"model\""),
                                 HasSubstr("has other values")));
  WriteCluster(model_);
  ExpectTokensOfOneProcess();
}

TEST_P(PushRunTest, APlanOfAnotherModelIsAWrongCall) {
  Plan plan = AlternatingPlan(model_, 9, 0);
  plan.model_name = "another";
  nlohmann::json file = nlohmann::json::parse(ToJsonText(plan));
  file["weights_xxh3"] = "0000000000000001";
  dir_.Write("plan.json", file.dump());
  for (const std::vector<std::string>& words : {std::vector<std::string>{"push"}, RunWords()}) {
    const Answer refused = Call(OverCluster(words));
    EXPECT_EQ(refused.exit_code, 2) << words.front();
    EXPECT_THAT(refused.err, AllOf(HasSubstr("plan.json was made for \"another\", but --model " + model_ + " has other weights"),
                                   HasSubstr("`lime plan`")));
  }
}

TEST_P(PushRunTest, ADaemonThatIsKilledMeanwhileIsWaitedForAndThePushGoesOn) {
  std::thread killer([&] {
    EXPECT_TRUE(limed_[1]->AwaitLog("is offered")) << limed_[1]->log();
    limed_[1]->End(SIGKILL);
    limed_[1]->Begin();
  });
  const nlohmann::json pushed = Push();
  killer.join();
  EXPECT_GE(pushed["sent_bytes"], 1);
  EXPECT_EQ(Push()["sent_bytes"], 0);
  ExpectTokensOfOneProcess();
}

INSTANTIATE_TEST_SUITE_P(Models, PushRunTest, ::testing::Bool(), [](const auto& info) { return info.param ? "Shipped" : "MadeAndTied"; });

}  // namespace
}  // namespace lime
