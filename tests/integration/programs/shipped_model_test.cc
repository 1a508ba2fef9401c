// The models that the project ships, by the `lime` that ships with them: they score the held-out
// text as their training recorded, and what they write is made of words of their corpus.
#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/integration/programs/lime_process.h"

namespace lime {
namespace {

using nlohmann::json;

const std::string kModels = LIME_SOURCE_DIR "/models/";

std::set<std::string> WordsOf(const std::string& text) {
  std::set<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!word.empty()) {
      words.insert(std::exchange(word, ""));
    }
  }
  return words;
}

class ShippedModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string dir_ = kModels + GetParam();
};

TEST_P(ShippedModelTest, ScoresTheHeldOutTextAsItsTrainingRecorded) {
  const json recorded = json::parse(Slurp(dir_ + "/eval.json"));
  const Answer answer = Call({"score", "--model", dir_, "--text-file", dir_ + "/heldout.txt", "--context",
                              std::to_string(recorded["heldout_txt_window"].get<int>()), "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const json root = answer.Json();
  int64_t scored = 0;
  for (const json& position : root["positions"]) scored += position["logprob"].is_number();
  EXPECT_EQ(scored, recorded["heldout_txt_tokens"].get<int64_t>());
  EXPECT_NEAR(root["perplexity"].get<double>() / recorded["heldout_txt_perplexity"].get<double>(), 1.0, 0.01);
}

TEST_P(ShippedModelTest, ContinuesTwentyPromptsInWholeSentencesOfKnownWords) {
  std::set<std::string> known = WordsOf(Slurp(LIME_SOURCE_DIR "/testbed/train/fables.grammar"));
  known.insert("an");  // the grammar writes "a" and mends it before a vowel
  const std::string prompts = kModels + "lime-fables/prompts.txt";
  for (const std::string& word : WordsOf(Slurp(prompts))) known.insert(word);
  const Answer answer = Call({"run", "--model", dir_, "--prompts-file", prompts, "--max-tokens", "120", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const json root = answer.Json();
  ASSERT_EQ(root["results"].size(), 20u);
  for (const json& result : root["results"]) {
    const std::string text = result["text"];
    EXPECT_EQ(result["finish_reason"], "end_token") << text;
    ASSERT_FALSE(text.empty());
    EXPECT_TRUE(text.ends_with('.') || text.ends_with('!') || text.ends_with('?') || text.ends_with('"')) << text;
    for (const std::string& word : WordsOf(text)) EXPECT_TRUE(known.contains(word)) << "\"" << word << "\" in: " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ShippedModelTest, ::testing::Values("lime-fables", "lime-fables-relu", "lime-fables-sparse"),
                         [](const auto& info) {
                           return info.param == "lime-fables" ? "Silu" : info.param.ends_with("relu") ? "Relu" : "Sparse";
                         });

// The model for sparse MLPs: nine in ten neurons are zero, and leaving them out changes no bit, up to its last position.
TEST(SparseShippedModelTest, HasFewActiveNeuronsAndTheSameBitsWithoutTheOthers) {
  const std::string model = kModels + "lime-fables-sparse";
  const json recorded = json::parse(Slurp(model + "/eval.json"));
  for (const json& zeros : recorded["zero_activation_share_by_layer"]) EXPECT_GE(zeros.get<double>(), 0.9);
  TempDir dir;
  const std::string store = dir / "store", text = model + "/heldout.txt";
  ASSERT_EQ(Call({"prepare", model, "--out", store, "--bundles"}).exit_code, 0);
  const json learned = Call({"calibrate", store, "--text-file", text, "--json"}).Json();
  ASSERT_EQ(learned["layers"].size(), 6u);
  for (const json& layer : learned["layers"]) EXPECT_LE(layer["active"][0].get<double>(), 0.12) << layer["layer"];
  const std::vector<std::string> call = {"run",          "--model", store,          "--prompt",      "Once upon a time",
                                         "--max-tokens", "480",     "--ignore-eos", "--hash-logits", "--json"};
  std::set<std::string> hashes;
  using Flags = std::vector<std::string>;
  for (const Flags& flags : {Flags{"--sparsity", "off"}, Flags{"--sparsity", "exact", "--neurons", "64"},
                             Flags{"--sparsity", "exact", "--neurons", "200", "--window", "3"}}) {
    std::vector<std::string> words = call;
    words.insert(words.end(), flags.begin(), flags.end());
    const Answer answer = Call(words);
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    hashes.insert(answer.Json()["logits_xxh3"].get<std::string>());
  }
  EXPECT_EQ(hashes.size(), 1u);
}

}  // namespace
}  // namespace lime
