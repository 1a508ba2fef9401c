#include "daemon/limed/limed_flags.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testbed/make_model/make_model.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The flags of a call with a file of this text.
absl::StatusOr<LimedFlags> Read(const std::string& text, std::vector<std::string> words = {}) {
  CLI::App app;
  LimedFlags flags;
  flags.AddTo(CommandFlags(app));
  std::ranges::reverse(words);
  app.parse(std::move(words));
  const absl::Status status = ReadLimedText(text, "limed.toml", CommandFlags(app), flags);
  if (!status.ok()) return status;
  return flags;
}

std::string Error(const std::string& text) {
  return std::string(Read(text).status().message());
}

TEST(LimedFileTest, ReadsEveryFlagByItsName) {
  const auto flags = Read(R"(
name = "orin"
listen = "127.0.0.1:7002"
memory = "2GiB"
memory-mode = "max-tps"
model = "/m"
store = "/s"
kv-dir = "/k"
tls = "/t"
pace = "p.json"
log = "error"
numerics = "portable"
loader = "mmap"
threads = 3
compute-cores = "0-1"
metrics = "127.0.0.1:9101"
background = "shelf"
insecure = true
no-link-probes = true
follow-memory = true
)");
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->name, "orin");
  EXPECT_EQ(flags->listen, "127.0.0.1:7002");
  EXPECT_EQ(flags->memory, "2147483648");
  EXPECT_EQ(flags->memory_mode, "max-tps");
  EXPECT_EQ(flags->weights, "/m");
  EXPECT_EQ(flags->store, "/s");
  EXPECT_EQ(flags->kv_dir, "/k");
  EXPECT_EQ(flags->tls, "/t");
  EXPECT_EQ(flags->pace, "p.json");
  EXPECT_EQ(flags->log_level, "error");
  EXPECT_EQ(flags->numerics, "portable");
  EXPECT_EQ(flags->loader, "mmap");
  EXPECT_EQ(flags->threads, 3);
  EXPECT_EQ(flags->compute_cores, "0-1");
  EXPECT_EQ(flags->metrics, "127.0.0.1:9101");
  EXPECT_EQ(flags->cluster, "shelf");
  EXPECT_TRUE(flags->insecure);
  EXPECT_TRUE(flags->no_link_probes);
  EXPECT_TRUE(flags->follow_memory);
}

TEST(LimedFileTest, PathsAreRelativeToTheFile) {
  CLI::App app;
  LimedFlags flags;
  flags.AddTo(CommandFlags(app));
  app.parse(std::vector<std::string>{"typed", "--store"});
  ASSERT_TRUE(ReadLimedText("model = \"m\"\nstore = \"s\"\nkv-dir = \"../k\"\ntls = \"/t\"\npace = \"p.json\"", "/etc/lime/limed.toml",
                            CommandFlags(app), flags)
                  .ok());
  EXPECT_EQ(flags.weights, "/etc/lime/m");
  EXPECT_EQ(flags.store, "typed") << "of the call: the working directory's";
  EXPECT_EQ(flags.kv_dir, "/etc/lime/../k");
  EXPECT_EQ(flags.tls, "/t");
  EXPECT_EQ(flags.pace, "/etc/lime/p.json");
}

TEST(LimedFileTest, AFlagOfTheCallWins) {
  const auto flags = Read("name = \"orin\"\nthreads = 3\n", {"--name", "nano"});
  ASSERT_TRUE(flags.ok());
  EXPECT_EQ(flags->name, "nano");
  EXPECT_EQ(flags->threads, 3);
}

TEST(LimedFileTest, ATypingErrorIsNamedWithLineAndNearestKey) {
  EXPECT_THAT(
      Error("name = \"a\"\nmemry = \"1GiB\"\n"),
      StartsWith(
          "limed.toml line 2: field \"memry\" is unknown; did you mean memory? The known fields are backend, background, compute-cores"));
  EXPECT_THAT(Error("ready-fd = 3\n"), HasSubstr("field \"ready-fd\" is unknown"));
  EXPECT_THAT(Error("[limed]\nname = \"a\"\n"), HasSubstr("line 1: field \"limed\" is unknown"));
  EXPECT_THAT(Error("kv_dir = \"/k\"\n"), HasSubstr("did you mean kv-dir?"));
}

TEST(LimedFileTest, EveryWrongValueHasItsLineAndKey) {
  EXPECT_EQ(Error("\nthreads = \"many\"\n"), "limed.toml line 2: field \"threads\" is not a whole number");
  EXPECT_EQ(Error("threads = -1\n"), "limed.toml line 1: field \"threads\" = -1 is outside 0 to 1024");
  EXPECT_THAT(Error("memory = [1, 2]\n"), StartsWith("limed.toml line 1: field \"memory\" is not a string"));
  EXPECT_THAT(Error("memory = \"lots\"\n"), StartsWith("limed.toml line 1: field \"memory\": \"lots\" is not a size"));
  EXPECT_THAT(Error("memory = 6\n"), HasSubstr("field \"memory\" = 6 is 6 B"));
  EXPECT_EQ(Error("log = \"foo\"\n"), "limed.toml line 1: field \"log\" = foo is unknown; use trace, debug, info, warning, error");
  EXPECT_EQ(Error("insecure = \"yes\"\n"), "limed.toml line 1: field \"insecure\" is neither true nor false");
  EXPECT_EQ(Error("store = \"\"\n"), "limed.toml line 1: field \"store\" is empty; give a value, or leave it out");
  EXPECT_THAT(Error("name = \"a b\"\n"), HasSubstr("field \"name\" = \"a b\" is not 1 to 64 letters"));
}

TEST(LimedFileTest, BrokenTomlKeepsItsQuotesAsTheyAre) {
  EXPECT_THAT(Error("name = \"a\n"), StartsWith("limed.toml line 1: is not valid TOML: Error while parsing string: "));
  EXPECT_THAT(Error("[a\n"), testing::Not(HasSubstr("\\'")));
}

LimedFlags Flags() {
  LimedFlags flags;
  flags.name = "a";
  return flags;
}

std::string Refusal(const LimedFlags& flags) {
  return std::string(CheckFlags(flags).status().message());
}

TEST(LimedFlagsTest, FoldersAreLookedAtBeforeWorkBegins) {
  const TempDir dir;
  LimedFlags flags = Flags();
  flags.weights = dir / "nothing";
  EXPECT_THAT(Refusal(flags), HasSubstr("is not a folder; give one that holds config.json"));
  flags.weights = dir.path();
  EXPECT_THAT(Refusal(flags), HasSubstr("holds no model; give a folder that holds config.json"));
  flags = Flags();
  std::ofstream(dir / "file") << "x";
  flags.store = dir / "file";
  EXPECT_THAT(Refusal(flags), HasSubstr("is not a folder, and limed cannot make one there"));
  flags.store.clear();
  flags.kv_dir = dir / "file/kv";
  EXPECT_THAT(Refusal(flags), HasSubstr("--kv-dir"));
}

// A path that is mistyped, or of a disk that is not mounted, becomes no folder of another disk.
TEST(LimedFlagsTest, AMemoryModeIsForMemoryThatIsChosenForAModel) {
  const TempDir dir;
  MakeModelOptions options;
  options.config.max_positions = 4096;
  ASSERT_TRUE(MakeModel(options, dir / "m").ok());
  LimedFlags flags = Flags();
  flags.memory_mode = "fast";
  EXPECT_THAT(Refusal(flags), HasSubstr("\"fast\" is not a memory priority"));
  flags.memory_mode = "max-context";
  EXPECT_THAT(Refusal(flags), HasSubstr("--memory-mode max-context keeps memory free for the KV of a model; give its folder"));
  flags.weights = dir / "m";
  EXPECT_EQ(CheckFlags(flags)->memory_mode, MemoryPriority::kMaxContext);
  flags.memory = "1GiB";
  EXPECT_THAT(Refusal(flags), HasSubstr("leave out --memory or --memory-mode"));
  EXPECT_EQ(ChooseMemory(dir / "m", MemoryPriority::kMaxTps, 100 * kMiB)->kv_tokens, 512);
  const auto chosen = ChooseMemory(dir / "m", MemoryPriority::kMaxContext, 100 * kMiB);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->kv_tokens, 4096);
  EXPECT_GT(chosen->kv, 0);
  EXPECT_GE(chosen->budget, 100 * kMiB);
}

TEST(LimedFlagsTest, OnlyTheLastFolderIsMadeAndOnlyInTheEnd) {
  const TempDir dir;
  LimedFlags flags = Flags();
  flags.kv_dir = dir / "unmounted/kv";
  EXPECT_THAT(Refusal(flags), HasSubstr(dir / "unmounted is not a folder; make that folder, mount its disk, or correct the path"));
  for (const std::string& path : {dir / "kv", dir / "kv2/"}) {
    flags.kv_dir = path;
    EXPECT_EQ(Refusal(flags), "");
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_EQ(MakeFolders(flags), absl::OkStatus());
    EXPECT_EQ(MakeFolders(flags), absl::OkStatus());
    EXPECT_TRUE(std::filesystem::is_directory(path));
  }
}

TEST(LimedFlagsTest, AWrongFieldOfTheFileIsReportedWithItsLineAsWritten) {
  const auto refusal = [](const std::string& line) { return Refusal(*Read("name = \"a\"\n" + line + "\n")); };
  const auto opens = [](const std::string& field) { return StartsWith("limed.toml line 2: field " + field); };
  EXPECT_THAT(refusal("memory = \"15TiB\""),
              testing::AnyOf(opens("\"memory\" = \"15TiB\": this machine has "), HasSubstr("control group")));
  EXPECT_THAT(refusal("threads = 1000"), opens("\"threads\" = 1000 is outside 0 to "));
  EXPECT_THAT(refusal("model = \"/nope\""), opens("\"model\" = \"/nope\" is not a folder"));
  EXPECT_THAT(refusal("store = \"/nope/s\""), opens("\"store\" = \"/nope/s\" is not there, and /nope is not a folder"));
  EXPECT_THAT(refusal("listen = \"h:+1\""), opens("\"listen\" = \"h:+1\": \"h:+1\" is not an address"));
  EXPECT_THAT(refusal("listen = \"h:1\""), opens("\"listen\" = \"h:1\" can be reached from other machines"));
  EXPECT_THAT(refusal("compute-cores = \"x\""), opens("\"compute-cores\" = \"x\": "));
  EXPECT_THAT(refusal("metrics = \"9101\""), opens("\"metrics\" = \"9101\": \"9101\" is not an address"));
  EXPECT_THAT(refusal("tls = \"/nope\""), opens("\"tls\" = \"/nope\": /nope/ca.pem is not there"));
  EXPECT_THAT(refusal("tls = \"/nope\"\ninsecure = true"), StartsWith("limed.toml line 3: field \"insecure\" = true: --tls and "));
  EXPECT_THAT(refusal("pace = \"/nope\""), opens("\"pace\" = \"/nope\": /nope: cannot open"));
}

TEST(LimedFlagsTest, FilesThatTheCallNamesMayBePipes) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string text = "threads = 1\nname = \"a\"\n";
  ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(ends[1]);
  CLI::App app;
  LimedFlags flags;
  flags.AddTo(CommandFlags(app));
  app.parse(std::vector<std::string>{"/dev/fd/" + std::to_string(ends[0]), "--config"});
  EXPECT_EQ(ReadLimedFile(CommandFlags(app), flags), absl::OkStatus());
  EXPECT_EQ(flags.name, "a");
  close(ends[0]);
  flags.config = "/";
  EXPECT_EQ(ReadLimedFile(CommandFlags(app), flags).message(), "--config /: is a folder; name a file");
}

TEST(LimedFlagsTest, LevelsDescriptorsThreadsAndBudgetsAreChecked) {
  LimedFlags flags = Flags();
  flags.log_level = "foo";
  EXPECT_EQ(Refusal(flags), "--log foo is unknown; use trace, debug, info, warning, error");
  flags = Flags();
  flags.ready_fd = 987;
  EXPECT_EQ(Refusal(flags), "--ready-fd 987 is not an open descriptor");
  flags = Flags();
  flags.threads = 1000;
  EXPECT_THAT(Refusal(flags), StartsWith("--threads 1000 is outside 0 to "));
  flags = Flags();
  for (const char* nothing : {"0", "0GiB"}) {
    flags.memory = nothing;
    EXPECT_EQ(Refusal(flags), std::string("--memory ") + nothing + " is too small; give a size such as 8GiB, or leave it out");
  }
  flags.memory = "500TiB";
  EXPECT_THAT(Refusal(flags), StartsWith("--memory 500TiB: "));
  flags = Flags();
  flags.name.clear();
  EXPECT_EQ(Refusal(flags), "--name is missing; give the device's name in cluster.toml");
  flags.name = "ca";
  EXPECT_THAT(Refusal(flags), StartsWith("--name: \"ca\" is reserved for keys"));
}

}  // namespace
}  // namespace lime
