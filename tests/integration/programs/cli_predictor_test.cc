// `--sparsity predicted` and `lime calibrate --predictor` as a user meets them.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/made_predictor.h"
#include "tests/integration/programs/cli_fixture.h"
#include "tests/skips.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// The program that trains is built on demand.
bool HasTrainer() {
  return std::filesystem::exists(std::filesystem::path(LIME_BINARY).parent_path() / "train_predictor");
}

class CliPredictorTest : public CliTest {
 protected:
  void SetUp() override {
    options_.config.family = "opt", options_.config.activation = Activation::kRelu;
    CliTest::SetUp();
    std::string words;
    for (int i = 0; i < 400; ++i) absl::StrAppend(&words, i * i, " foxes; ");
    WriteFile(text_, words);
    ASSERT_EQ(Call({"prepare", model_, "--out", store_, "--bundles"}).exit_code, 0);
  }

  Answer Run(std::vector<std::string> more) const {
    std::vector<std::string> call = {"run", "--model", store_, "--prompt", "1 fox", "--max-tokens", "6", "--ignore-eos", "--hash-logits"};
    call.insert(call.end(), more.begin(), more.end());
    return Call(call);
  }
  // A random one, with the calibration of the model.
  void MakePredictor(uint32_t seed) {
    ASSERT_EQ(Call({"calibrate", store_, "--text-file", text_, "--tokens", "512"}).exit_code, 0);
    const std::string calibration = store_ + "/calibration.json";
    const absl::StatusOr<int64_t> made = WriteRandomPredictor(store_, 8, seed, ReadJson(calibration)["model"], Slurp(calibration));
    ASSERT_TRUE(made.ok()) << made.status();
  }

  const std::string store_ = dir_ / "store", text_ = dir_ / "text";
};

TEST_F(CliPredictorTest, AStoreWithoutAPredictorIsRefusedByName) {
  ExpectRefused(Run({"--sparsity", "predicted"}), 2, "has no predictor.safetensors; train a predictor with `lime calibrate --predictor R`");
  ASSERT_TRUE(WriteRandomPredictor(store_, 8).ok());
  ExpectRefused(Run({"--sparsity", "predicted"}), 2, "predictor.safetensors: is of another model");
  std::filesystem::resize_file(store_ + "/predictor.safetensors", 100);
  ExpectRefused(Run({"--sparsity", "predicted"}), 2, "; train it again with `lime calibrate --predictor R`");
  EXPECT_EQ(Run({"--sparsity", "auto", "--json"}).exit_code, 0) << "nobody else reads it";
}

TEST_F(CliPredictorTest, ARunSaysThatItsResultsAreOthersAndGivesTheSameInAllPlans) {
  MakePredictor(1);
  const json exact = Run({"--json"}).Json();
  EXPECT_TRUE(exact["lossless"].get<bool>()) << "auto never chooses it";
  EXPECT_THAT(exact["devices"][0]["numerics_id"], Not(HasSubstr("predicted")));
  const Answer answer = Run({"--sparsity", "predicted", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const json first = answer.Json();
  EXPECT_EQ(first["sparsity"], "predicted");
  EXPECT_FALSE(first["lossless"].get<bool>());
  const std::string hash = first["predictor"]["xxh3"];
  EXPECT_THAT(first["devices"][0]["numerics_id"], HasSubstr("+predicted-" + hash));
  EXPECT_TRUE(first["predictor"]["perplexity"].is_null()) << "nobody has measured it";
  EXPECT_NE(first["logits_xxh3"], exact["logits_xxh3"]);
  const Answer said = Run({"--sparsity", "predicted"});
  EXPECT_THAT(said.err, HasSubstr("results change: predictor " + hash));
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--neurons", "1"}, {"--neurons", "100", "--window", "2"}, {"--chunk", "1"}, {"--memory", "200MiB", "--threads", "1"}}) {
    std::vector<std::string> call = {"--sparsity", "predicted", "--json"};
    call.insert(call.end(), more.begin(), more.end());
    const Answer other = Run(call);
    ASSERT_EQ(other.exit_code, 0) << other.err;
    EXPECT_EQ(other.Json()["logits_xxh3"], first["logits_xxh3"]) << more.front();
    EXPECT_EQ(other.Json()["text"], first["text"]);
  }
  ASSERT_TRUE(WriteRandomPredictor(store_, 8, 1, ReadJson(store_ + "/calibration.json")["model"], "{}").ok());
  ExpectRefused(Run({"--sparsity", "predicted"}), 2, "is no calibration; `lime calibrate --predictor R` writes a new one");
  MakePredictor(2);
  const json second = Run({"--sparsity", "predicted", "--json"}).Json();
  EXPECT_NE(second["predictor"]["xxh3"], hash);
  EXPECT_NE(second["logits_xxh3"], first["logits_xxh3"]);
}

TEST_F(CliPredictorTest, PrepareTakesThePredictorOfTheModelAlong) {
  ASSERT_TRUE(WriteRandomPredictor(model_, 8).ok());
  const std::string predictor = Slurp(model_ + "/predictor.safetensors");
  ASSERT_EQ(Call({"prepare", model_, "--out", store_, "--bundles"}).exit_code, 0);
  EXPECT_TRUE(Slurp(store_ + "/predictor.safetensors") == predictor);
  ASSERT_TRUE(WriteRandomPredictor(store_, 8, /*seed=*/7).ok());
  ASSERT_EQ(Call({"prepare", model_, "--out", store_, "--bundles"}).exit_code, 0);
  EXPECT_FALSE(Slurp(store_ + "/predictor.safetensors") == predictor) << "that of the store stays";
}

TEST_F(CliPredictorTest, RanksThatTheModelCannotHaveAreRefused) {
  const auto call = [&](const std::string& ranks, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"calibrate", store_, "--text-file", text_, "--predictor", ranks});
    return Call(more);
  };
  ExpectRefused(call("0"), 2, "is not a rank from 1 to");
  ExpectRefused(call("x"), 2, "is not a rank from 1 to");
  ExpectRefused(call("100000"), 2, "is not a rank from 1 to");
  ExpectRefused(call("8,8,8"), 2, "has 3 ranks, need one, or one for each of 2 layers");
  ExpectRefused(call("8", {"--tokens", "2"}), 2, "at least two sequences");
  ExpectRefused(call("8", {"--seed", "-1"}), 2, "--seed -1 is negative");
  WriteFile(store_ + "/predictor.safetensors", "mine");
  ExpectRefused(call("8"), 2, "is no predictor that LIME wrote");
}

TEST_F(CliPredictorTest, WithoutTheProgramThatTrainsTheRestIsDoneAndItIsNamed) {
  if (HasTrainer()) GTEST_SKIP() << "train_predictor is built";
  const Answer answer = Call({"calibrate", store_, "--text-file", text_, "--predictor", "8", "--context", "64"});
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_THAT(answer.err, HasSubstr("no predictor was trained"));
  EXPECT_THAT(answer.err, HasSubstr("build the target train_predictor"));
  EXPECT_TRUE(std::filesystem::exists(store_ + "/calibration.json"));
  EXPECT_FALSE(std::filesystem::exists(store_ + "/predictor.safetensors"));
}

// Training takes minutes, in a program of its own.
TEST_F(CliPredictorTest, AnInterruptEndsTheTrainingAndLeavesNothing) {
  const std::filesystem::path bin = dir_ / "bin";
  std::filesystem::create_directory(bin);
  std::filesystem::copy_file(LIME_BINARY, bin / "lime");
  WriteFile((bin / "train_predictor").string(), "#!/bin/sh\necho begun > \"$(dirname \"$0\")/begun\"\nexec tail -f /dev/null\n");
  std::filesystem::permissions(bin / "train_predictor", std::filesystem::perms::owner_all);
  Lime lime({"calibrate", store_, "--text-file", text_, "--predictor", "8", "--context", "64"}, "", (bin / "lime").c_str());
  ASSERT_TRUE(AwaitWords((bin / "begun").string(), "begun")) << lime.err();
  kill(lime.pid(), SIGTERM);
  const Answer answer = lime.Wait();
  EXPECT_EQ(answer.exit_code, 130) << answer.err;
  EXPECT_FALSE(std::filesystem::exists(store_ + "/.lime_predictor"));
  EXPECT_FALSE(std::filesystem::exists(store_ + "/calibration.json"));
}

// flash.md, section 10: FN and FP of at most 6 %, and 1.5 % of perplexity, with a rank of d / 4. The first layer
// has more active neurons; the goal is that of the others.
TEST_F(CliPredictorTest, ATrainedPredictorOfShakespeareReachesTheGoals) {
  const auto model = SharedDir() / "models/opt-shakespeare", text = SharedDir() / "text/tinyshakespeare.txt";
  LIME_SKIP_WITHOUT_SHARED(model);
  LIME_SKIP_WITHOUT_SHARED(text);
  if (!HasTrainer()) GTEST_SKIP() << "train_predictor is not built";
  const std::string store = dir_ / "shakespeare";
  ASSERT_EQ(Call({"prepare", model.string(), "--out", store, "--bundles"}).exit_code, 0);
  const std::vector<std::string> call = {"calibrate", store,      "--text-file", text.string(), "--predictor",
                                         "24",        "--tokens", "51000",       "--json"};
  const Answer answer = Call(call);
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.err, Not(HasSubstr("was not measured"))) << "the trial says nothing before it is over";
  const json predictor = answer.Json()["predictor"];
  ASSERT_EQ(predictor["layers"].size(), 4u);
  for (const json& layer : predictor["layers"]) {
    if (layer["layer"] == 0) continue;
    EXPECT_LE(layer["false_negatives"].get<double>(), 0.06) << layer;
    EXPECT_LE(layer["false_positives"].get<double>(), 0.06) << layer;
  }
  EXPECT_GT(predictor["exact_perplexity"].get<double>(), 1);
  EXPECT_LE(predictor["perplexity"].get<double>(), 1.015 * predictor["exact_perplexity"].get<double>());
  const std::string bytes = Slurp(store + "/predictor.safetensors");
  ASSERT_EQ(Call(call).exit_code, 0);
  EXPECT_TRUE(Slurp(store + "/predictor.safetensors") == bytes) << "a seed gives one predictor";
  const Answer run = Call({"run", "--model", store, "--prompt", "ROMEO:", "--max-tokens", "8", "--sparsity", "predicted"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr(absl::StrCat("results change: predictor ", predictor["xxh3"].get<std::string>())));
  EXPECT_THAT(run.err, HasSubstr("with it and"));
}

}  // namespace
}  // namespace lime
