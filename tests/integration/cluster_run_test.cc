// `lime run --cluster` over real daemons: three `limed` processes on loopback that interleave and stream give what one process gives.

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "daemon/weights/checkpoint.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan_problem.h"
#include "tests/integration/lime_process.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

const std::string kModel = LIME_SOURCE_DIR "/models/lime-fables";
constexpr int kDevices = 3;

// A daemon of its own, ended with the test.
class Limed {
 public:
  explicit Limed(const std::string& name) {
    log_ = dir_ / "log";
    pid_ = fork();
    if (pid_ == 0) {
      dup2(open(log_.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600), STDERR_FILENO);
      execl(LIMED_BINARY, "limed", "--name", name.c_str(), "--listen", "127.0.0.1:0", "--threads", "1", nullptr);
      _exit(127);
    }
    for (int i = 0; i < 600 && port_ == 0; ++i) {
      std::this_thread::sleep_for(50ms);
      const std::string log = Slurp(log_), words = "listens on port ";
      if (const size_t at = log.find(words); at != std::string::npos) port_ = std::atoi(log.c_str() + at + words.size());
    }
    EXPECT_NE(port_, 0) << Slurp(log_);
  }
  ~Limed() { End(SIGTERM); }

  // Its exit status, as waitpid gives it.
  int End(int signal) {
    int status = 0;
    if (pid_ <= 0) return status;
    kill(pid_, signal);
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }
  int port() const { return port_; }

 private:
  TempDir dir_;
  std::string log_;
  pid_t pid_ = 0;
  int port_ = 0;
};

// Stages go round the devices three times; every other part streams, in pieces of at most 32 KiB.
Plan InterleavedPlan() {
  const auto checkpoint = Checkpoint::Open(kModel);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  EXPECT_TRUE(spec.ok()) << spec.status();
  std::vector<ClusterDevice> devices(kDevices);
  for (int d = 0; d < kDevices; ++d) {
    devices[d] = {.name = std::string(1, static_cast<char>('a' + d)), .budget = 2 * kGiB, .runtime = 256 * kMiB, .activations = 64 * kMiB};
    devices[d].profile.read_bytes_per_second = 1e10;
    devices[d].profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
  }
  PlanRequest request{.model_name = "lime-fables", .context = 512, .batches = {1}, .piece_bytes = 32 * kKiB, .prompt_tokens = 16};
  request.chunks = {8};
  const auto problem = MakePlanProblem(*spec, devices, request);
  EXPECT_TRUE(problem.ok()) << problem.status();
  PlanChoice choice{.batch = 1};
  choice.first_token = {.feasible = true, .ms = 1, .chunk_rows = 8, .chunks = 2, .chunks_per_sweep = 1};
  choice.stages.embedding_by_rows = true;
  const Instance& instance = problem->instance;
  int begun = 0;
  for (int b = 0; b < instance.NumBlocks(); ++b) {
    std::vector<Stage>& stages = choice.stages.stages;
    const bool begins = b == 0 || (!instance.IsLaterPiece(b) && b * 3 * kDevices / instance.NumBlocks() >= begun);
    if (begins) {
      stages.push_back({begun++ % kDevices, b, b + 1});
    } else {
      stages.back().hi = b + 1;
    }
    if (b % 2 == 1) choice.stages.streamed.push_back(b);
  }
  auto plan = MakePlan(*problem, choice);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan{};
}

class ClusterRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Plan plan = InterleavedPlan();
    ASSERT_GE(plan.stages.size(), 2u * kDevices) << plan.DebugString();
    dir_.Write("plan.json", ToJsonText(plan));
    for (int d = 0; d < kDevices; ++d) limed_.push_back(std::make_unique<Limed>(Name(d)));
    WriteCluster();
  }

  static std::string Name(int device) { return std::string(1, static_cast<char>('a' + device)); }

  void WriteCluster() {
    std::string text = absl::StrCat("[cluster]\nname = \"test\"\nmodel = \"", kModel, "\"\n");
    for (int d = 0; d < kDevices; ++d) {
      absl::StrAppend(&text, "[[device]]\nname = \"", Name(d), "\"\naddress = \"127.0.0.1:", limed_[d]->port(),
                      "\"\nmemory = \"2GiB\"\nweights = \"", kModel, "\"\n");
    }
    dir_.Write("cluster.toml", text);
  }

  std::vector<std::string> OverCluster(std::vector<std::string> call) {
    for (const std::string& more : {std::string("--cluster"), dir_ / "cluster.toml", std::string("--plan"), dir_ / "plan.json"})
      call.push_back(more);
    return call;
  }

  TempDir dir_;
  std::vector<std::unique_ptr<Limed>> limed_;
};

TEST_F(ClusterRunTest, TokensAndLogitsAreThoseOfOneProcess) {
  const std::vector<std::vector<std::string>> sampling = {{"--temperature", "0"}, {"--temperature", "0.8", "--seed", "5"}};
  for (const std::vector<std::string>& flags : sampling) {
    std::vector<std::string> call = {
        "run",    "--model",       kModel,      "--prompt", "Once upon a time there was a fox who wanted to find", "--max-tokens", "40",
        "--json", "--hash-logits", "--context", "512"};
    call.insert(call.end(), flags.begin(), flags.end());
    const Answer alone = Call(call), cluster = Call(OverCluster(call));
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    ASSERT_EQ(cluster.exit_code, 0) << cluster.err;
    for (const char* field : {"token_ids", "text", "logits_xxh3", "prompt_tokens", "completion_tokens", "finish_reason"}) {
      EXPECT_EQ(cluster.Json()[field], alone.Json()[field]) << field;
    }
    EXPECT_GT(cluster.Json()["disk_bytes_per_token"], 0);
  }
}

TEST_F(ClusterRunTest, ADeviceThatIsKilledEndsTheRunWithASentenceAndTheOthersGoOn) {
  const std::vector<std::string> call =
      OverCluster({"run", "--model", kModel, "--prompt", "Once upon a time", "--max-tokens", "480", "--ignore-eos", "--context", "512"});
  Lime run(call);
  for (int i = 0; i < 400 && run.out().size() < 40; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(WIFSIGNALED(limed_[1]->End(SIGKILL)));
  const auto killed = std::chrono::steady_clock::now();
  const Answer answer = run.Wait();
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 4s);
  EXPECT_EQ(answer.exit_code, 1) << answer.err;
  EXPECT_THAT(answer.err, HasSubstr("device \""));
  limed_[1] = std::make_unique<Limed>(Name(1));
  WriteCluster();
  const Answer again =
      Call(OverCluster({"run", "--model", kModel, "--prompt", "Once upon a time", "--max-tokens", "8", "--context", "512"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

TEST_F(ClusterRunTest, ADaemonEndsCleanly) {
  const int status = limed_[0]->End(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace lime
