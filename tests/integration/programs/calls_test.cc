// What every call of `lime` and `limed` shares: words that are no command, flag or value, texts
// that are piped in, errors as JSON, and signals at any moment.

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testbed/make_model/make_model.h"
#include "tests/cases.h"
#include "tests/common/exposition/exposition_parser.h"
#include "tests/common/http/http_client.h"
#include "tests/integration/programs/lime_process.h"
#include "tests/integration/programs/limed_process.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kFables = LIME_SOURCE_DIR "/models/lime-fables";
const std::string kClusters = LIME_SOURCE_DIR "/testbed/clusters/";

class CallsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(MakeModel(options_, model_).ok()); }

  std::vector<std::string> Run(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"run", "--model", model_, "-n", "2", "--ignore-eos", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  MakeModelOptions options_;
  TempDir dir_;
  const std::string model_ = dir_ / "model";
};

// Names of all commands, as the help lists them.
std::vector<std::string> Commands() {
  std::vector<std::string> commands;
  std::istringstream help(Call({"--help"}).out);
  bool listed = false;
  for (std::string line; std::getline(help, line);) {
    if (line == "Subcommands:") listed = true;
    if (line.empty()) listed = false;
    if (listed && line.starts_with("  ") && line.size() > 2 && line[2] != ' ') commands.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  return commands;
}

TEST_F(CallsTest, EveryCommandAcceptsJson) {
  const std::vector<std::string> commands = Commands();
  EXPECT_GE(commands.size(), 17u);
  for (const std::string& command : commands) EXPECT_THAT(Call({command, "--help"}).out, HasSubstr("--json")) << command;
}

TEST_F(CallsTest, AWordThatIsNotKnownIsNamedWithTheNearest) {
  ExpectRefused(Call({"runn", "--model", model_}), 2, "lime: unknown command \"runn\"; did you mean lime run?");
  ExpectRefused(Call({"poem"}), 2, "lime: unknown command \"poem\"; `lime --help` lists the commands");
  ExpectRefused(Call({"run", "--model", model_, "--max-token", "10"}), 2,
                "lime: run: unknown flag --max-token; did you mean --max-tokens?");
  ExpectRefused(Call({"run", model_}), 2, absl::StrCat("the model is given as --model ", model_));
  ExpectRefused(Call({"run", "--model", model_, "Once", "upon"}), 2, "unexpected word \"Once\"; a prompt is given as --prompt");
  ExpectRefused(Call({"plan", "--cluster"}), 2, "lime: plan: ");
  EXPECT_EQ(Call({"help"}).out, Call({"--help"}).out);
  EXPECT_EQ(Call({"help", "run"}).out, Call({"run", "--help"}).out);
  EXPECT_EQ(Call({"version"}).out, Call({"--version"}).out);
}

TEST_F(CallsTest, AModelThatIsNoFolderIsSaidWithWhereModelsComeFrom) {
  ExpectRefused(Call({"run", "--model", "meta-llama/Llama-3.2-1B", "--prompt", "x"}), 2,
                "git clone https://huggingface.co/meta-llama/Llama-3.2-1B");
  ExpectRefused(Call({"run", "--model", "m.gguf", "--prompt", "x"}), 2, "LIME does not read GGUF files");
  ExpectRefused(Call({"score", "--model", model_ + "/config.json", "--ids", "1"}), 2, "is a file; give the folder");
}

TEST_F(CallsTest, AFolderWithoutAModelIsAWrongCallOfEveryCommand) {
  std::filesystem::create_directory(dir_ / "m");
  for (const std::vector<std::string>& words : {std::vector<std::string>{"run", "--prompt", "x"},
                                                {"trace", "--prompt", "x"},
                                                {"score", "--ids", "1,2"},
                                                {"bench"},
                                                {"prepare", "--out", dir_ / "s"},
                                                {"quantize", "--out", dir_ / "q"},
                                                {"profile"},
                                                {"demo"},
                                                {"tokenize"}}) {
    std::vector<std::string> call = words;
    call.insert(call.end(), {"--model", dir_ / "m"});
    ExpectRefused(Call(call), 2, "holds no config.json; give the folder of a Hugging Face checkpoint");
  }
}

TEST_F(CallsTest, AnErrorIsOneObjectWithJson) {
  const Answer wrong = Call({"runn", "--json"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_EQ(wrong.Json()["error"]["kind"], "wrong_call");
  EXPECT_EQ(wrong.Json()["error"]["exit_code"], 2);
  EXPECT_EQ(absl::StrCat("lime: ", wrong.Json()["error"]["message"].get<std::string>(), "\n"), wrong.err);
  ExpectRefused(Call(Run({"--prompt", "x", "--memory", "1MiB"})), 1, "--memory allows 1.00 MiB");
  ExpectRefused(Call({"up", "--cluster", dir_ / "none.toml", "--json"}), 2, "none.toml");
  ExpectRefused(Call({"down", "--cluster", dir_ / "none.toml", "--json"}), 2, "none.toml");
}

TEST_F(CallsTest, WhatIsAskedForIsOneObjectToo) {
  for (const char* words : {"version", "--version"}) {
    const json version = Call({words, "--json"}).Json();
    EXPECT_TRUE(version.is_object() && version.contains("version") && version.contains("protocol")) << words;
  }
  EXPECT_EQ(Call({"run", "--help", "--json"}).Json()["help"], Call({"help", "run"}).out);
}

TEST_F(CallsTest, FilesOfTheCallAreLookedAtBeforeAnythingElse) {
  ExpectRefused(Call({"doctor", "--cluster", dir_ / "none.toml", "--json"}), 2, "none.toml");
  ExpectRefused(Call({"doctor", "--model", dir_ / "none", "--json"}), 2, "is not a folder");
  WriteFile(dir_ / "c.toml", "[cluster]\nmodel = \"/none\"\n[[device]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\n");
  for (const std::vector<std::string>& words : {std::vector<std::string>{"plan"}, {"run", "-p", "x"}, {"score", "--ids", "1"}, {"push"}}) {
    std::vector<std::string> call = words;
    call.insert(call.end(), {"--cluster", dir_ / "c.toml"});
    ExpectRefused(Call(call), 2, absl::StrCat(dir_ / "c.toml", ": model /none is not a folder"));
  }
  ExpectRefused(Call({"profile", "--model", dir_ / "none"}), 2, "is not a folder");
  WriteFile(dir_ / "c.toml", "[[device]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\n");
  ExpectRefused(Call({"run", "-m", model_, "-p", "x", "--cluster", dir_ / "c.toml", "--plan", dir_ / "none"}), 2, "none");
}

TEST_F(CallsTest, EveryDeviceThatIsSilentIsNamed) {
  WriteFile(dir_ / "c.toml", "[[device]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\n[[device]]\nname = \"b\"\naddress = \"127.0.0.1:2\"\n");
  std::deque<std::pair<std::string, Lime>> calls;  // all at once: each of them waits for the devices
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"unload"}, {"profile"}, {"store", "--remove", "x"}, {"store", "--json"}, {"push", "--model", model_}}) {
    std::vector<std::string> call = words;
    call.insert(call.end(), {"--cluster", dir_ / "c.toml"});
    calls.emplace_back(words.front(), call);
  }
  for (auto& [command, lime] : calls) {
    const Answer answer = lime.Wait();
    EXPECT_EQ(answer.exit_code, 1) << command;
    EXPECT_THAT(answer.err, HasSubstr("device \"a\" at 127.0.0.1:1: nobody listens")) << command;
    EXPECT_THAT(answer.err, HasSubstr("device \"b\" at 127.0.0.1:2: nobody listens")) << command;
  }
}

TEST_F(CallsTest, NumbersAreWhatIsWritten) {
  ExpectRefused(Call(Run({"--prompt", "x", "--seed", "-1"})), 2, "--seed -1 is not a whole number of 0 or more");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "-n", "99999999999999999999"}), 2,
                "-n 99999999999999999999 does not fit in 64 bits");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "-n", "010"}), 2, "without leading zeros");
}

TEST_F(CallsTest, EmptyValuesAreWrongAndAnEmptyPromptStartsFromBos) {
  ExpectRefused(Call(Run({"--prompt", "x", "--memory", ""})), 2, "--memory is empty");
  ExpectRefused(Call({"run", "--model", "", "--prompt", "x"}), 2, "--model is empty");
  EXPECT_EQ(Call(Run({"--prompt", "x", "--stop", ""})).exit_code, 0);  // no text ends before nothing
  EXPECT_EQ(Call(Run({"--prompt", "x", "--stop="})).exit_code, 0);
  EXPECT_EQ(Call(Run({"--prompt="})).Json()["prompt_tokens"], 1);
  const Answer answer = Call(Run({"--prompt", ""}));
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_EQ(answer.Json()["prompt_tokens"], 1);
}

// As with ulimit -f, or LimitFSIZE= of a service.
TEST_F(CallsTest, AFileThatMayNotGrowFurtherIsOneSentenceAndNothingIsLeft) {
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit small = {.rlim_cur = 64 << 10, .rlim_max = before.rlim_max};
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"prepare", model_, "--out", dir_ / "store"}, {"quantize", "--model", model_, "--out", dir_ / "copy"}}) {
    SCOPED_TRACE(words.front());
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    Lime lime(words);
    setrlimit(RLIMIT_FSIZE, &before);
    ExpectRefused(lime.Wait(), 1, "File too large");
    EXPECT_FALSE(std::filesystem::exists(words.back()));
  }
}

TEST_F(CallsTest, AnOutputReplacesNothingThatTheCallReads) {
  WriteFile(dir_ / "p", "Once\n");
  const auto trace = [this](const std::string& path) { return Call(Run({"--prompts-file", dir_ / "p", "--trace", path, "--overwrite"})); };
  ExpectRefused(trace(dir_ / "p"), 2, "is also read by this command");
  ExpectRefused(trace(model_ + "/config.json"), 2, "belongs to the model in its folder");
  EXPECT_EQ(Slurp(dir_ / "p"), "Once\n");
  EXPECT_EQ(trace(dir_ / "t").exit_code, 0);
  EXPECT_EQ(trace(dir_ / "t").exit_code, 0) << "which LIME wrote";
}

TEST_F(CallsTest, AByteOrderMarkIsNoPartOfAPrompt) {
  const std::string mark = "\xEF\xBB\xBF";
  for (const std::string& text : {mark + "hello\nhello\n", mark + "\"hello\"\n\"hello\"\n", mark + "{\"prompt\": \"hello\"}\nhello\n"}) {
    WriteFile(dir_ / "prompts", text);
    const Answer answer = Call(Run({"--prompts-file", dir_ / "prompts"}));
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    EXPECT_EQ(answer.Json()["results"][0]["token_ids"], answer.Json()["results"][1]["token_ids"]) << text;
    EXPECT_EQ(answer.Json()["results"][0]["prompt_tokens"], 5) << text;
  }
  WriteFile(dir_ / "prompts", std::string("\xFF\xFEh\0i\0", 6));
  ExpectRefused(Call(Run({"--prompts-file", dir_ / "prompts"})), 2, "is UTF-16; save it as UTF-8");
}

TEST_F(CallsTest, TextThatIsNoUtf8IsRefusedWithItsPlace) {
  const std::string latin = "Once\nupon \xe9t\xe9\n";
  WriteFile(dir_ / "p", latin);
  ExpectRefused(Call(Run({"--prompts-file", dir_ / "p"})), 2, "p line 2 byte 6 is not UTF-8 (0xe9); save it as UTF-8");
  ExpectRefused(Call({"score", "--model", model_, "--text-file", dir_ / "p"}), 2, "p line 2 byte 6 is not UTF-8");
  ExpectRefused(Call(Run({"--prompt", "-"}), latin), 2, "line 2 byte 6 is not UTF-8");
  ExpectRefused(Call({"tokenize", "--model", model_}, latin), 2, "stdin line 2 byte 6 is not UTF-8");
}

TEST_F(CallsTest, PromptsArePipedIn) {
  const json typed = Call(Run({"--prompt", "hello"})).Json();
  EXPECT_EQ(Call(Run({"--prompt", "-"}), "hello\n").Json()["token_ids"], typed["token_ids"]);
  EXPECT_EQ(Call(Run({"--prompts-file", "-"}), "hello\r\n").Json()["token_ids"], typed["token_ids"]);
  EXPECT_EQ(Call(Run({"--prompt", "-"}), "hello\n\n").Json()["prompt_tokens"], 6) << "only the end of the last line is dropped";
  ExpectRefused(Call(Run({"--prompt", "-", "--prompts-file", "-"}), "x\n"), 2, "stdin can be read only once");
  ExpectRefused(Call(Run({"--prompts-file", model_})), 2, "is a folder; name a file in it");
  ExpectRefused(Call(Run({"--prompts-file", dir_ / "none"})), 2, "cannot be read");
  ExpectRefused(Call({"score", "--model", model_, "--text-file", model_}), 2, "is a folder; name a file in it");
  for (const std::string& words :
       {"run -p - -m " + model_, "run --prompts-file - -m " + model_, "tokenize -m " + model_, std::string("solve")}) {
    for (const std::string& in : {std::string("<&-"), "< " + model_}) {
      const std::string call = absl::StrCat(LIME_BINARY, " ", words, " ", in, " 2> ", dir_ / "said");
      EXPECT_EQ(WEXITSTATUS(std::system(call.c_str())), 2) << call;
      EXPECT_THAT(Slurp(dir_ / "said"), HasSubstr("lime: stdin is closed")) << call;
    }
  }
}

TEST_F(CallsTest, ScorePrintsWhatIsAskedForToAPersonToo) {
  const Answer asked = Call({"score", "--model", model_, "--ids", "1,2,3", "--top", "2"});
  ASSERT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_THAT(asked.out, HasSubstr("likeliest next"));
  EXPECT_EQ(std::ranges::count(asked.out, '('), 1 + 3 * 2) << asked.out;
  EXPECT_THAT(Call({"score", "--model", model_, "--ids", "1,2,3"}).out, Not(HasSubstr("likeliest next")));
}

// ---- Signals

TEST_F(CallsTest, AnInterruptedRunPrintsItsTextSoFarAndEndsWith130) {
  std::string prompts;
  for (int i = 0; i < 400; ++i) prompts += "Once\n";  // 13 s of computation, measured on a server core
  WriteFile(dir_ / "prompts", prompts);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Lime lime(
        {"run", "--model", kFables, "--max-tokens", "400", "--ignore-eos", "--json", "--threads", "1", "--prompts-file", dir_ / "prompts"});
    AwaitHandler(lime, signal);
    EXPECT_TRUE(lime.AwaitWork(kSanitized ? 5 : 0.3)) << "it has not begun to generate";
    kill(lime.pid(), signal);
    const Answer answer = lime.Wait();
    EXPECT_EQ(answer.exit_code, 130) << signal << answer.err;
    EXPECT_EQ(answer.Json()["error"]["kind"], "interrupted") << answer.out;
    EXPECT_THAT(answer.err, HasSubstr("lime: interrupted"));
    EXPECT_EQ(answer.Json()["results"].back()["finish_reason"], "interrupted");
  }
}

TEST_F(CallsTest, EveryCommandEndsAtOnceWithOneSentence) {
  WriteFile(dir_ / "text", std::string(200'000, 'x'));
  const std::vector<std::vector<std::string>> calls = {{"score", "--model", kFables, "--text-file", dir_ / "text", "--threads", "1"},
                                                       {"profile", "--seconds", "60", "--out", dir_ / "profile.json"},
                                                       {"bench", "--model", kFables, "--rounds", "10000"},
                                                       {"demo"},
                                                       {"plan", "--model-spec", kClusters + "llama-3.3-70b.json", "--device-profiles",
                                                        kClusters + "setting-2.json", "--bandwidth", "200Mbit/s", "--time-limit", "60000"}};
  for (const std::vector<std::string>& words : calls) {
    for (const int milliseconds : {0, 900}) {
      Lime lime(words);
      AwaitHandler(lime, SIGINT);
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));  // moments differ: nothing waits for it
      const absl::Time signalled = absl::Now();
      kill(lime.pid(), SIGINT);
      const Answer answer = lime.Wait();
      if (answer.exit_code == 0) continue;  // it was done
      EXPECT_EQ(answer.exit_code, 130) << words.front() << ": " << answer.err;
      EXPECT_THAT(answer.err, HasSubstr("lime: interrupted")) << words.front();
      EXPECT_LT(absl::Now() - signalled, absl::Seconds(8)) << words.front();
    }
  }
}

TEST(LimedMetricsProgramTest, ADeviceAnswersForItselfOnlyWhereItIsAskedTo) {
  const std::string words = "answers GET /metrics on port ";
  Limed limed("a", {.more = {"--metrics", "127.0.0.1:0"}});
  const std::string log = limed.log();
  ASSERT_THAT(log, HasSubstr(words));
  HttpClient client(std::atoi(log.c_str() + log.find(words) + words.size()));
  const HttpClient::Answer answer = client.Get("/metrics");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const absl::StatusOr<ParsedMetrics> metrics = ParseExposition(answer.body);
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_EQ(metrics->at("limed_plan_epoch"), -1);
  EXPECT_GT(metrics->at("process_resident_memory_bytes"), 1e6);
  EXPECT_EQ(limed.End(SIGTERM), 0) << "though a client keeps its connection";
  EXPECT_THAT(Limed("b").log(), Not(HasSubstr(words)));
}

}  // namespace
}  // namespace lime
