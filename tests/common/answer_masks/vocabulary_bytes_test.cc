#include "common/answer_masks/vocabulary_bytes.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/common/json_schema/vocabularies.h"

namespace lime::json_schema {
namespace {

using testing::HasSubstr;

TEST(VocabularyBytesTest, AVocabularyReturnsAsFarAsMasksNeedIt) {
  std::vector<TokenText> tokens = {{"a"}, {"", TokenUse::kText}, {"</s>", TokenUse::kEnd}, {"<pad>", TokenUse::kNever}};
  tokens.push_back({"<call>", TokenUse::kSpecial});
  tokens.push_back({std::string(100, 'x')});
  tokens.push_back({std::string(Vocabulary::kMaxTokenBytes, 'y')});
  tokens.push_back({std::string(Vocabulary::kMaxTokenBytes + 1, 'z')});
  const auto back = ParseVocabularyBytes(VocabularyBytes(Vocabulary(tokens)));
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ((*back)->size(), tokens.size());
  for (int32_t id = 0; id < std::ssize(tokens); ++id) {
    EXPECT_EQ((*back)->Use(id), tokens[static_cast<size_t>(id)].use) << id;
    const bool is_written = id != 2 && id != 3 && id != 7;
    EXPECT_EQ((*back)->Bytes(id), is_written ? tokens[static_cast<size_t>(id)].bytes : "") << id;
  }
  EXPECT_EQ((*back)->end_ids(), (std::vector<int32_t>{2}));
  EXPECT_EQ((*back)->special_ids(), (std::vector<int32_t>{4}));
}

TEST(VocabularyBytesTest, BytesThatArriveAreTheBytesThatWereSent) {
  const std::string bytes = VocabularyBytes(*SmallVocabulary());
  EXPECT_EQ(VocabularyBytes(**ParseVocabularyBytes(bytes)), bytes);
  EXPECT_EQ((*ParseVocabularyBytes(""))->size(), 0u);
}

TEST(VocabularyBytesTest, CutAndHostileBytesAreRefused) {
  const std::string bytes = VocabularyBytes(Vocabulary({{"abc"}, {std::string(50, 'x')}}));
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    if (cut == 4) continue;  // one token
    EXPECT_FALSE(ParseVocabularyBytes(bytes.substr(0, cut)).ok()) << cut;
  }
  const auto refusal = [](const std::string& text) { return std::string(ParseVocabularyBytes(text).status().message()); };
  EXPECT_THAT(refusal("\x84\x80"), HasSubstr("token 0 is cut or too large"));
  EXPECT_THAT(refusal(std::string(9, '\xff')), HasSubstr("token 0 is cut or too large"));
  EXPECT_THAT(refusal("\x84\x20" + std::string(2000, 'x')), HasSubstr("token 0 has 1025 bytes"));
  EXPECT_THAT(refusal(std::string(kMaxVocabularyTokens + 1, '\0')), HasSubstr("more than 1048576 tokens"));
}

}  // namespace
}  // namespace lime::json_schema
