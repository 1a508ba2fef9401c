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
    const Answer answer = Call(more);
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
  EXPECT_THAT(with({"--tokens", "200"}).out, HasSubstr("5 bits, 6 dir."));
}

}  // namespace
}  // namespace lime
