// `lime bench flash` as a user meets it.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/stores/block_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testbed/make_model/make_model.h"
#include "tests/integration/programs/cli_fixture.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class CliFlashTest : public CliTest {
 protected:
  void MakeStore() {
    MakeModelOptions model{.planted_neurons = true};
    model.config = {.family = "opt",
                    .num_layers = 2,
                    .hidden_size = 256,
                    .num_heads = 8,
                    .num_kv_heads = 8,
                    .intermediate_size = 512,
                    .vocab_size = 400,
                    .max_positions = 128};
    ASSERT_TRUE(MakeModel(model, dir_ / "planted").ok());
    ASSERT_TRUE(PrepareBlockStore(dir_ / "planted", dir_ / "flash", {.bundles = true}).ok());
  }
  std::vector<std::string> FlashCall(std::vector<std::string> more) const {
    std::vector<std::string> call = {"bench", "flash",   "--model", dir_ / "flash", "--quick", "--tokens",
                                     "8",     "--learn", "48",      "--masks",      "active"};
    call.insert(call.end(), more.begin(), more.end());
    return call;
  }
};

TEST_F(CliFlashTest, TheEngineRunsBesideTheRungs) {
  MakeStore();
  const json answer = Call(FlashCall({"--json", "--memory", "200MiB"})).Json();
  ASSERT_EQ(answer["ladder"].size(), 7u);
  EXPECT_GT(answer["computing_ms"].get<double>(), 0);
  ASSERT_EQ(answer["engine"].size(), 4u);
  for (const json& run : answer["engine"]) {
    EXPECT_FALSE(run.contains("why_not")) << run;
    EXPECT_GT(run["whole_ms"].get<double>(), 0) << run;
  }
  EXPECT_GT(answer["engine"][0]["read_mb"].get<double>(), answer["mlp_bytes"].get<double>() / 1e6) << "all weights stream";
  EXPECT_EQ(answer["engine"][2]["memory_bytes"], 200 << 20);
}

TEST_F(CliFlashTest, ARunWithTooLittleMemoryIsARowThatSaysSo) {
  MakeStore();
  const json answer = Call(FlashCall({"--json", "--memory", "2MiB"})).Json();
  EXPECT_THAT(answer["engine"][2]["why_not"].get<std::string>(), HasSubstr("--memory allows 2.00 MiB"));
}

TEST_F(CliFlashTest, WithoutTheEngineThereIsATextOfTheLadder) {
  MakeStore();
  const Answer answer = Call(FlashCall({"--no-engine"}));
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("+ path, joined reads"));
  EXPECT_THAT(answer.out, HasSubstr("memory management, compact"));
}

TEST_F(CliFlashTest, ATextIsComputedInsteadOfRandomIds) {
  MakeStore();
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>('a' + i * i % 26);
  WriteFile(dir_ / "text", text);
  const json answer = Call(FlashCall({"--no-engine", "--json", "--text-file", dir_ / "text"})).Json();
  EXPECT_EQ(answer["ids"], "text");
  const json random = Call(FlashCall({"--no-engine", "--json"})).Json();
  EXPECT_EQ(random["ids"], "random");
  EXPECT_NE(answer["masks"]["active"], random["masks"]["active"]);
  for (const char* learn : {"-1", "9223372036854775807"})
    ExpectRefused(Call({"bench", "flash", "--model", dir_ / "flash", "--text-file", dir_ / "text", "--learn", learn}), 2,
                  absl::StrCat("--learn ", learn, " is outside 16"));
  WriteFile(dir_ / "text", "too short");
  ExpectRefused(Call(FlashCall({"--text-file", dir_ / "text"})), 2, "the text has 9 tokens, and 88 are needed");
  WriteFile(dir_ / "text", "");
  ExpectRefused(Call(FlashCall({"--text-file", dir_ / "text"})), 2, "has no tokens");
}

TEST_F(CliFlashTest, WrongCallsAreRefused) {
  ExpectRefused(Call({"bench", "flush", "--model", model_}), 2, "bench flush is unknown; use flash");
  ExpectRefused(Call({"bench", "--model", model_, "--masks", "active"}), 2, "--masks is for `lime bench flash`");
  ExpectRefused(Call({"bench", "flash", "--model", model_, "--masks", "all"}), 2, "--masks all is unknown; use predicted or active");
  ExpectRefused(Call({"bench", "flash", "--model", model_, "--learn", "1"}), 2, "--learn 1 is outside 16");
}

}  // namespace
}  // namespace lime
