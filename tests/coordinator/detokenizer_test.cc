#include "coordinator/text/detokenizer.h"

#include <gmock/gmock.h>

#include <random>

#include "coordinator/text/unicode/utf8.h"
#include "tests/coordinator/small_tokenizers.h"
#include "tests/coordinator/text_fixtures.h"

namespace lime {
namespace {

// Every piece is whole characters, and together they are what Decode gives.
void ExpectStreamsAsDecode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, const DecodeOptions& options) {
  StreamingDetokenizer detokenizer(tokenizer, options);
  std::string joined, oracle;
  for (const int32_t id : ids) {
    const std::string_view piece = detokenizer.Push(id);
    ASSERT_TRUE(IsUtf8(piece));
    joined.append(piece);
  }
  joined.append(detokenizer.Finish());
  ASSERT_EQ(joined, tokenizer.Decode(ids, options));
  // Decode itself against the definition: all bytes joined, stripped, then repaired.
  bool first = true;
  std::string bytes;
  for (const int32_t id : ids) {
    if (tokenizer.IdToText(id).empty() || (options.skip_special && tokenizer.IsSpecial(id))) continue;
    bytes.append(tokenizer.TokenBytes(id, std::exchange(first, false)));
  }
  for (int64_t i = 0; i < tokenizer.strip().count && bytes.starts_with(tokenizer.strip().content); ++i) {
    bytes.erase(0, tokenizer.strip().content.size());
  }
  tokenizer.replaces_by_byte() ? AppendLossyUtf8ByByte(bytes, oracle) : AppendLossyUtf8(bytes, oracle);
  ASSERT_EQ(joined, oracle);
}

void ExpectRandomIdsStream(const Tokenizer& tokenizer) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int32_t> any(-1, tokenizer.vocab_size());
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> ids(random() % 40);
    for (int32_t& id : ids) id = round % 2 == 0 ? any(random) : any(random) % 300;  // low ids are single bytes in most vocabularies
    ExpectStreamsAsDecode(tokenizer, ids, {.skip_special = round % 3 != 0});
  }
}

class DetokenizerProperty : public testing::TestWithParam<std::string> {};

TEST_P(DetokenizerProperty, PiecesJoinToTheDecodedText) {
  LIME_SKIP_WITHOUT_SHARED(SharedDir() / GetParam());
  ExpectRandomIdsStream(SharedTokenizer(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Folders, DetokenizerProperty,
                         testing::Values("tokenizers/llama3", "tokenizers/llama2-spm", "tokenizers/qwen3", "tokenizers/falcon",
                                         "tokenizers/gpt2", "tokenizers/opt", "models/stories260k", "models/opt-shakespeare",
                                         "models/aidreams260k"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '-' || c == '/'; }, '_');
                           return name;
                         });

TEST(DetokenizerTest, PiecesJoinForSmallTokenizersOfEveryDecoder) {
  TokenizerJson json = ByteLevelJson();
  for (const TokenizerJson& decoder :
       {json["decoder"], TokenizerJson(), TokenizerJson{{"type", "Metaspace"}, {"replacement", "a"}, {"prepend_scheme", "first"}},
        TokenizerJson{{"type", "Sequence"},
                      {"decoders",
                       {TokenizerJson{{"type", "ByteLevel"}}, TokenizerJson{{"type", "Fuse"}},
                        TokenizerJson{{"type", "Strip"}, {"content", "ab"}, {"start", 2}}}}}}) {
    json["decoder"] = decoder;
    ExpectRandomIdsStream(*FromJsonOrDie(json));
  }
}

TEST(DetokenizerTest, ACharacterOfFourTokensComesOutWhole) {
  const auto tokenizer = ByteLevelTokenizer();
  StreamingDetokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.Push(0xF0), "");
  EXPECT_EQ(detokenizer.Push(0x9F), "");
  EXPECT_EQ(detokenizer.Push(0x98), "");
  EXPECT_EQ(detokenizer.Push(0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(detokenizer.Finish(), "");
}

TEST(DetokenizerTest, ABrokenCharacterBecomesOneReplacement) {
  const auto tokenizer = ByteLevelTokenizer();
  StreamingDetokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.Push(0xF0), "");
  EXPECT_EQ(detokenizer.Push(0x9F), "");
  EXPECT_EQ(detokenizer.Push('a'), "\uFFFDa");
  EXPECT_EQ(detokenizer.Push(0xE2), "");
  EXPECT_EQ(detokenizer.Finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.Push('b'), "b") << "Finish starts afresh";
}

}  // namespace
}  // namespace lime
