// Real vocabularies against ids from other implementations.
#include <gmock/gmock.h>

#include "tests/cases.h"
#include "tests/coordinator/text_fixtures.h"

namespace lime {
namespace {

void ExpectIds(const Tokenizer& tokenizer, const TokenizerJson& vector) {
  const bool special = vector.at("add_special").get<bool>();
  const auto text = vector.at("text").get<std::string>();
  const EncodeOptions options{.add_special = special, .parse_special = special};
  const auto ids = tokenizer.Encode(text, options);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_LE(*tokenizer.LeastIds(text, options), std::ssize(*ids)) << text;
  EXPECT_EQ(*ids, vector.at("ids").get<std::vector<int32_t>>()) << vector.at("id") << " " << vector.at("text");
}

class TokenizerVectors : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path Folder() const { return SharedDir() / "tokenizers" / GetParam(); }
  const Tokenizer& Get() const { return SharedTokenizer("tokenizers/" + GetParam()); }
};

TEST_P(TokenizerVectors, EncodesAsTheVectorsSay) {
  LIME_SKIP_WITHOUT_SHARED(Folder());
  const auto rows = ReadJsonl(Folder() / "vectors.jsonl");
  EXPECT_GT(rows.size(), 70u);
  for (const TokenizerJson& row : rows) ExpectIds(Get(), row);
}

TEST_P(TokenizerVectors, DecodesAsTheVectorsSay) {
  LIME_SKIP_WITHOUT_SHARED(Folder());
  if (!std::filesystem::exists(Folder() / "decode.jsonl")) GTEST_SKIP() << "the folder has no decode.jsonl";
  for (const TokenizerJson& row : ReadJsonl(Folder() / "decode.jsonl")) {
    EXPECT_EQ(Get().Decode(row.at("ids").get<std::vector<int32_t>>()), row.at("text").get<std::string>()) << row.at("id");
  }
}

TEST_P(TokenizerVectors, DecodingAnEncodedTextReturnsTheText) {
  LIME_SKIP_WITHOUT_SHARED(Folder());
  if (GetParam().starts_with("qwen")) GTEST_SKIP() << "this vocabulary normalises its text";
  for (const TokenizerJson& row : ReadJsonl(Folder() / "vectors.jsonl")) {
    const auto text = row.at("text").get<std::string>();
    const auto ids = Get().Encode(text, {.parse_special = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(Get().Decode(*ids), text);
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, TokenizerVectors, testing::Values("llama3", "llama2-spm", "qwen3", "qwen35", "falcon", "gpt2", "opt"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Qwen3.5's split pattern over Qwen3's vocabulary: the set-up that made these vectors.
TEST(TokenizerVectors, Qwen35PatternSplitsAsLlamaCpp) {
  if (!ManyCases()) GTEST_SKIP() << "under a sanitizer, the test takes long to make its tokenizer";
  const auto folder = SharedDir() / "tokenizers";
  LIME_SKIP_WITHOUT_SHARED(folder);
  TokenizerJson json = TokenizerJson::parse(ReadAll(folder / "qwen3/tokenizer.json"));
  json["pre_tokenizer"] = TokenizerJson::parse(ReadAll(folder / "qwen35/tokenizer.json")).at("pre_tokenizer");
  json["normalizer"] = nullptr;
  const auto tokenizer = Tokenizer::FromJson(json.dump(), "qwen3 with qwen35's pattern");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto rows = ReadJsonl(folder / "qwen35/split-vectors.jsonl");
  EXPECT_GT(rows.size(), 20u);
  for (const TokenizerJson& row : rows) ExpectIds(**tokenizer, row);
}

TEST(TokenizerVectors, Qwen35ExactIdsNameOnePieceEach) {
  const auto folder = SharedDir() / "tokenizers/qwen35";
  LIME_SKIP_WITHOUT_SHARED(folder);
  const Tokenizer& tokenizer = SharedTokenizer("tokenizers/qwen35");
  const TokenizerJson ranges = TokenizerJson::parse(ReadAll(folder / "exact-ids.json")).at("exact");
  for (const TokenizerJson& range : ranges) {
    for (int32_t id = range[0]; id < range[1].get<int32_t>(); ++id) ASSERT_EQ(tokenizer.TokenToId(tokenizer.IdToText(id)), id);
  }
}

TEST(TokenizerVectors, Llama2ModelFileAgreesWithItsJson) {
  const auto folder = SharedDir() / "tokenizers/llama2-spm";
  LIME_SKIP_WITHOUT_SHARED(folder);
  const auto model = Tokenizer::FromSentencePiece(ReadAll(folder / "tokenizer.model"), "tokenizer.model");
  ASSERT_TRUE(model.ok()) << model.status();
  for (const TokenizerJson& row : ReadJsonl(folder / "vectors.jsonl")) ExpectIds(**model, row);
  for (const TokenizerJson& row : ReadJsonl(folder / "decode.jsonl")) {
    EXPECT_EQ((*model)->Decode(row.at("ids").get<std::vector<int32_t>>()), row.at("text").get<std::string>());
  }
}

// The folder's vocab.json and merges.txt alone, as OPT's repositories are published.
TEST(TokenizerVectors, OptVocabAndMergesAgreeWithItsJson) {
  const auto folder = SharedDir() / "tokenizers/opt";
  LIME_SKIP_WITHOUT_SHARED(folder);
  const auto copy = std::filesystem::path(testing::TempDir()) / "opt_vocab_and_merges";
  std::filesystem::create_directories(copy);
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"}) {
    std::filesystem::copy_file(folder / name, copy / name, std::filesystem::copy_options::overwrite_existing);
  }
  const auto tokenizer = Tokenizer::Load(copy.string());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const TokenizerJson& row : ReadJsonl(folder / "vectors.jsonl")) ExpectIds(**tokenizer, row);
}

class ModelFolders : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path Folder() const { return SharedDir() / "models" / GetParam(); }
};

void ExpectGoldenIds(const Tokenizer& tokenizer, const TokenizerJson& golden) {
  for (const TokenizerJson& run : golden.at("greedy")) {
    const auto ids = tokenizer.Encode(run.at("prompt").get<std::string>());
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, run.at("prompt_ids").get<std::vector<int32_t>>()) << run.at("prompt");
    auto all = run.at("prompt_ids").get<std::vector<int32_t>>();
    for (const TokenizerJson& id : run.at("greedy_ids")) all.push_back(id.get<int32_t>());
    EXPECT_EQ(tokenizer.Decode(all), run.at("text").get<std::string>());
  }
}

TEST_P(ModelFolders, PromptsHaveTheGoldenIds) {
  LIME_SKIP_WITHOUT_SHARED(Folder());
  ExpectGoldenIds(SharedTokenizer("models/" + GetParam()), TokenizerJson::parse(ReadAll(Folder() / "golden.json")));
}

TEST_P(ModelFolders, ModelFileAgreesWithItsJson) {
  LIME_SKIP_WITHOUT_SHARED(Folder());
  if (!std::filesystem::exists(Folder() / "tokenizer.model")) GTEST_SKIP() << "the folder has no tokenizer.model";
  const auto model = Tokenizer::FromSentencePiece(ReadAll(Folder() / "tokenizer.model"), "tokenizer.model");
  ASSERT_TRUE(model.ok()) << model.status();
  const Tokenizer& json = SharedTokenizer("models/" + GetParam());
  ExpectGoldenIds(**model, TokenizerJson::parse(ReadAll(Folder() / "golden.json")));
  const std::string text = ReadAll(SharedDir() / "text/wikitext2-test.txt").substr(0, 100'000);
  EXPECT_TRUE(*(*model)->Encode(text) == *json.Encode(text));
  EXPECT_TRUE((*model)->Decode(*json.Encode(text, {.parse_special = false})) == text);
  EXPECT_EQ(json.bos_id(), (*model)->bos_id());
  EXPECT_EQ(json.eos_id(), (*model)->eos_id());
}

INSTANTIATE_TEST_SUITE_P(Models, ModelFolders,
                         testing::Values("aidreams260k", "aidreams260k-bf16", "opt-shakespeare", "opt-shakespeare-f16", "stories260k",
                                         "stories260k-bf16", "stories260k-relu"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace lime
