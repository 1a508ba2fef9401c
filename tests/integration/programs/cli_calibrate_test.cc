// `lime calibrate` as a user meets it.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/programs/cli_fixture.h"
#include "tests/skips.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// A trained model whose inputs are concentrated in all layers but the first.
TEST(CliCalibrateTest, CopiesOfATrainedModelProveMostOfItsZeros) {
  const auto model = SharedDir() / "models/opt-shakespeare", text = SharedDir() / "text/tinyshakespeare.txt";
  LIME_SKIP_WITHOUT_SHARED(model);
  LIME_SKIP_WITHOUT_SHARED(text);
  TempDir dir;
  const std::vector<std::string> call = {"calibrate", model.string(), "--text-file", text.string(), "--out", dir / "c.json"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), call.begin(), call.end());
    Answer answer = Call(more);
    EXPECT_EQ(answer.exit_code, 0) << answer.err;
    return answer;
  };
  const json layers = with({"--json"}).Json()["layers"];
  ASSERT_EQ(layers.size(), 4u);
  double goal_proven = 0, goal_zeros = 0;  // of layers 1 to 3, in 5 bits with d / 16 directions
  for (const json& layer : layers) {
    const json& proofs = layer["proofs"];
    ASSERT_EQ(proofs.size(), 6u);
    double before = 0;
    for (const json& proof : proofs) {
      const double of_zeros = proof["proven"].get<double>() / proof["zeros"].get<double>();
      if (proof["directions"] == 12) EXPECT_GT(of_zeros, before) << "more bits prove more";
      if (proof["directions"] == 12) before = of_zeros;
      const bool is_goal = layer["layer"] != 0 && proof["bits"] == 5 && proof["directions"] == 6;
      EXPECT_GE(of_zeros, is_goal ? 0.95 : 0.7) << layer["layer"] << ": " << proof;
      if (is_goal) goal_proven += proof["proven"].get<double>(), goal_zeros += proof["zeros"].get<double>();
    }
    EXPECT_GE(before, layer["layer"] == 0 ? 0.98 : 0.99) << "8 bits";
  }
  EXPECT_GE(goal_proven / goal_zeros, 0.96);
  EXPECT_EQ(layers[0].count("coactivation"), 0u);
  EXPECT_THAT(with({"--tokens", "200"}).out, HasSubstr("5 bits, 6 dir."));
}

// The negative result of "LLM in a flash": copies of closest friends are mostly of neurons that are there already.
TEST(CliCalibrateTest, CopiesOfClosestFriendsBringWhatIsThere) {
  const auto model = SharedDir() / "models/opt-shakespeare", text = SharedDir() / "text/tinyshakespeare.txt";
  LIME_SKIP_WITHOUT_SHARED(model);
  LIME_SKIP_WITHOUT_SHARED(text);
  TempDir dir;
  const std::vector<std::string> call = {"calibrate", model.string(), "--text-file",    text.string(), "--out", dir / "c.json",
                                         "--decider", "dense",        "--coactivation", "--tokens",    "2048",  "--masks",
                                         "5"};
  std::vector<std::string> as_json = call;
  as_json.push_back("--json");
  const json layers = Call(as_json).Json()["layers"];
  ASSERT_EQ(layers.size(), 4u);
  for (const json& layer : layers) {
    const json& of = layer["coactivation"];
    EXPECT_EQ(of["steps"], 2048);
    double before = 1;
    ASSERT_EQ(of["friends"].size(), 3u);
    for (const json& rank : of["friends"]) {
      EXPECT_LE(rank["mean"].get<double>(), before);
      before = rank["mean"].get<double>();
    }
    EXPECT_LT(of["closest_friends"].get<int>(), layer["neurons"].get<int>() / 2);
    EXPECT_GT(of["friends_already_there"].get<double>(), of["friends_used"].get<double>());
    EXPECT_LE(of["bundles_with_friends"].get<double>(), of["new_neurons"].get<double>());
    EXPECT_GT(2 * of["bundles_with_friends"].get<double>(), of["new_neurons"].get<double>()) << "more bytes than without copies";
  }
  EXPECT_THAT(Call(call).out, HasSubstr("4th friend"));
}

}  // namespace
}  // namespace lime
