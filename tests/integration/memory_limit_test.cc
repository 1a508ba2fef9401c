// A run stays inside its budget from start to end: under a hard limit of the kernel at exactly that
// size, from loading over a long prompt to the last token. Root and a memory cgroup (version 1 or
// 2) are needed.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/base/bytes.h"
#include "tests/integration/models.h"
#include "tests/skips.h"

namespace lime {
namespace {

// A memory cgroup of our own, gone with the test.
class LimitedGroup {
 public:
  explicit LimitedGroup(Bytes limit) {
    for (const std::string root : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
      const std::string folder = absl::StrCat(root, "/lime_test_", getpid(), "_", limit);
      std::error_code error;
      if (!std::filesystem::create_directory(folder, error)) continue;
      if (Write(folder + "/memory.limit_in_bytes", limit) || Write(folder + "/memory.max", limit)) {
        Write(folder + "/memory.swappiness", 0);
        Write(folder + "/memory.swap.max", 0);
        folder_ = folder;
        return;
      }
      std::filesystem::remove(folder, error);
    }
  }
  ~LimitedGroup() {
    if (!folder_.empty()) rmdir(folder_.c_str());
  }
  bool exists() const { return !folder_.empty(); }
  bool Join() const { return Write(folder_ + "/cgroup.procs", getpid()); }
  Bytes Peak() const {
    Bytes peak = 0;
    for (const char* name : {"/memory.max_usage_in_bytes", "/memory.peak"}) std::ifstream(folder_ + name) >> peak;
    return peak;
  }

 private:
  static bool Write(const std::string& path, int64_t value) {
    std::ofstream file(path);
    file << value;
    file.close();
    return !file.fail();
  }
  std::string folder_;
};

// `lime run` inside the group; the exit code, and what it printed.
int RunLimited(const LimitedGroup& group, const std::vector<std::string>& args, const std::string& out) {
  const pid_t child = fork();
  if (child == 0) {
    if (!group.Join()) _exit(125);
    const int file = open(out.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    std::vector<char*> argv = {const_cast<char*>(LIME_BINARY)};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    execv(LIME_BINARY, argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(MemoryLimitTest, AModelLargerThanTheBudgetRunsUnderAHardLimitOfExactlyTheBudget) {
  TempDir dir;
  MakeModelOptions options;
  options.config.hidden_size = 1024;
  options.config.intermediate_size = 3072;
  options.config.num_heads = 16;
  options.config.num_kv_heads = 4;
  options.config.head_dim = 64;
  options.config.num_layers = 10;
  options.config.vocab_size = 4096;
  options.config.max_positions = 4096;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());  // 240 MB
  constexpr Bytes kBudget = 192 * kMiB;
  const LimitedGroup group(kBudget), wide(8 * kGiB);
  LIME_SKIP_WITHOUT(group.exists() && wide.exists(), "the right to make a memory cgroup");
  std::string ids = "1";
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&ids, ",", 2 + i * 7 % 4000);
  const std::vector<std::string> score = {"score", "--model", dir / "model", "--ids", ids, "--top", "1", "--json"};
  const std::vector<std::string> run = {"run",          "--model", dir / "model",  "--prompt",      std::string(2000, 'x'),
                                        "--max-tokens", "8",       "--ignore-eos", "--hash-logits", "--json"};
  const std::string out = dir / "out.json";
  for (const auto& call : {score, run}) {
    std::vector<std::string> limited = call;
    limited.insert(limited.end(), {"--memory", absl::StrCat(kBudget), "--chunk", "64"});
    ASSERT_EQ(RunLimited(group, limited, out), 0) << std::ifstream(out).rdbuf();
    const nlohmann::json answer = ReadJson(out);
    EXPECT_LE(answer["peak_rss_bytes"].get<Bytes>(), kBudget) << call[0];
    EXPECT_LE(group.Peak(), kBudget) << call[0];
    EXPECT_GT(answer["streaming"]["streamed_bytes_per_step"].get<Bytes>(), 0) << "the budget is meant to be too small";
    if (call[0] == "run") {
      EXPECT_GE(answer["prompt_tokens"].get<int64_t>(), 2000);
      EXPECT_EQ(answer["completion_tokens"].get<int64_t>(), 8);
    }
    ASSERT_EQ(RunLimited(wide, call, out), 0);
    EXPECT_EQ(ReadJson(out)["logits_xxh3"], answer["logits_xxh3"]) << call[0];
  }
}

}  // namespace
}  // namespace lime
