// Random schemas, random walks under the mask: every answer ends in time and is valid.
#include <gmock/gmock.h>

#include <random>

#include "common/json_schema/token_masks.h"
#include "tests/cases.h"
#include "tests/common/json_schema/answers.h"
#include "tests/common/json_schema/random_schema.h"
#include "tests/common/json_schema/validator.h"
#include "tests/common/json_schema/vocabularies.h"

namespace lime::json_schema {
namespace {

using Json = nlohmann::ordered_json;

bool Has(const std::vector<uint64_t>& bits, size_t id) {
  return (bits[id / 64] >> (id % 64) & 1) != 0;
}

// What TokenMasks promises, by trying every token.
std::vector<uint64_t> MaskByTrying(const Matcher& matcher, const Vocabulary& vocabulary, int64_t tokens_left, size_t words) {
  const int64_t least = matcher.LeastBytes();
  const int64_t budget = least > tokens_left ? kEndless - 1 : tokens_left - (least + 1 <= tokens_left ? 2 : 1);
  std::vector<uint64_t> bits(words);
  std::vector<bool> is_special(vocabulary.size()), is_end(vocabulary.size());
  for (const int32_t id : vocabulary.special_ids()) is_special[static_cast<size_t>(id)] = true;
  for (const int32_t id : vocabulary.end_ids()) is_end[static_cast<size_t>(id)] = true;
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.Bytes(static_cast<int32_t>(id));
    bool allowed = is_end[id] && matcher.IsComplete();
    if (!is_end[id] && !is_special[id] && !text.empty()) {
      const bool is_text = text.size() > 1 || vocabulary.single_bytes()[static_cast<uint8_t>(text[0])];
      Matcher next = matcher;
      allowed = is_text && next.Advance(text) && next.LeastBytes() <= budget;
    }
    if (allowed) bits[id / 64] |= uint64_t{1} << (id % 64);
  }
  return bits;
}

struct Walk {
  std::string text;
  int64_t tokens = 0;
  bool has_ended = false;
};

// Draws among the allowed tokens until one ends the answer.
Walk WalkUnderMask(const GrammarPtr& grammar, const Vocabulary& vocabulary, TokenMasks& masks, int64_t max_tokens,
                   std::mt19937_64& random) {
  Matcher matcher(grammar);
  std::vector<uint64_t> bits(masks.Words());
  Walk walk;
  while (walk.tokens < max_tokens) {
    masks.Write(matcher, max_tokens - walk.tokens, bits);
    if (random() % 8 == 0) EXPECT_EQ(bits, MaskByTrying(matcher, vocabulary, max_tokens - walk.tokens, bits.size())) << walk.text;
    std::vector<int32_t> allowed;
    for (size_t id = 0; id < vocabulary.size(); ++id) {
      if (Has(bits, id)) allowed.push_back(static_cast<int32_t>(id));
    }
    EXPECT_FALSE(allowed.empty()) << walk.text;
    if (allowed.empty()) return walk;
    const int32_t id = allowed[random() % allowed.size()];
    ++walk.tokens;
    walk.has_ended = std::ranges::count(vocabulary.end_ids(), id) > 0;
    if (walk.has_ended) return walk;
    EXPECT_TRUE(matcher.Advance(vocabulary.Bytes(id)));
    walk.text += vocabulary.Bytes(id);
  }
  return walk;
}

void CheckWalks(const VocabularyPtr& vocabulary, uint64_t first_seed, int cases, int least_accepted) {
  TokenMasks masks(vocabulary);
  int accepted = 0;
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(cases); ++seed) {
    RandomSchema schemas(seed);
    const Json schema = schemas.Make();
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + schema.dump());
    const absl::StatusOr<GrammarPtr> grammar = CompileAnswer(schema.dump(), {.writable = vocabulary->single_bytes()});
    if (!grammar.ok()) continue;
    ++accepted;
    std::mt19937_64 random(seed);
    for (const int64_t more : {2, 2, 9, 40}) {
      const int64_t max_tokens = (*grammar)->LeastBytes() + more;
      const Walk walk = WalkUnderMask(*grammar, *vocabulary, masks, max_tokens, random);
      ASSERT_TRUE(walk.has_ended) << walk.text;
      ASSERT_LE(walk.tokens, max_tokens);
      const Json value = Json::parse(walk.text, nullptr, /*allow_exceptions=*/false);
      ASSERT_FALSE(value.is_discarded()) << walk.text;
      ASSERT_TRUE(IsValid(value, schema, schema)) << walk.text;
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GE(accepted, least_accepted);
}

TEST(JsonWalksTest, AnswersUnderTheMaskAreValidAndEndInTime) {
  const int cases = Cases(400, 20'000);
  CheckWalks(SmallVocabulary(), 1, cases, cases / 2);
}

TEST(JsonWalksTest, AVocabularyMayLackBytes) {
  const int cases = Cases(100, 5'000);
  CheckWalks(SmallVocabulary([](int byte) { return byte >= 0x20 && byte < 0x7F && byte != 'e' && byte != 'n'; }), 100'000, cases,
             cases / 8);
}

TEST(JsonWalksTest, LongTokensKeepTheBoundsOfALength) {
  std::vector<TokenText> tokens = {{"\""}, {"a"}, {"</s>", TokenUse::kEnd}};
  for (const size_t length : {5u, 17u, 30u, 40u})
    tokens.push_back({std::string(length, 'a')}), tokens.push_back({std::string(length, 'a') + "\""});
  const auto vocabulary = std::make_shared<Vocabulary>(tokens);
  TokenMasks masks(vocabulary);
  const Json schema = {{"type", "string"}, {"minLength", 35}, {"maxLength", 60}};
  const GrammarPtr grammar = CompileAnswer(schema.dump(), {.writable = vocabulary->single_bytes()}).value();
  std::mt19937_64 random(1);
  for (int i = 0; i < 100; ++i) {
    Matcher matcher(grammar);
    std::vector<uint64_t> bits(masks.Words());
    const int64_t max_tokens = 39 + static_cast<int64_t>(random() % 3);
    bool has_ended = false;
    for (int64_t left = max_tokens; left > 0 && !has_ended; --left) {
      masks.Write(matcher, left, bits);
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < static_cast<int32_t>(vocabulary->size()); ++id) {
        if (Has(bits, static_cast<size_t>(id))) allowed.push_back(id);
      }
      ASSERT_FALSE(allowed.empty());
      const int32_t id = allowed[random() % allowed.size()];
      has_ended = id == 2;
      if (!has_ended) ASSERT_TRUE(matcher.Advance(vocabulary->Bytes(id)));
    }
    ASSERT_TRUE(has_ended);
  }
}

TEST(JsonWalksTest, AnAnswerThatCannotEndInTimeIsCut) {
  const VocabularyPtr vocabulary = SmallVocabulary();
  TokenMasks masks(vocabulary);
  const GrammarPtr grammar = CompileAnswer(R"({"type": "string", "minLength": 20})").value();
  std::mt19937_64 random(1);
  const Walk walk = WalkUnderMask(grammar, *vocabulary, masks, 5, random);
  EXPECT_EQ(walk.tokens, 5);
  EXPECT_FALSE(walk.has_ended);
  EXPECT_EQ(Try(grammar, walk.text), "begins");
}

}  // namespace
}  // namespace lime::json_schema
