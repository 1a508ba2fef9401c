#include "testbed/train/bpe_trainer.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime::train {
namespace {

using ::testing::ElementsAre;

const ByteBpe::WordCounts kWords{{" low", 5}, {" lower", 2}, {" newest", 6}, {" widest", 3}};

TEST(SplitWordsTest, FollowsGpt2sPattern) {
  EXPECT_THAT(SplitWords("I'm here,  \"Tom\" 12 \n\nyes!"),
              ElementsAre("I", "'m", " here", ",", " ", " \"", "Tom", "\"", " 12", " \n", "\n", "yes", "!"));
  EXPECT_THAT(SplitWords("end. "), ElementsAre("end", ".", " "));
  EXPECT_THAT(SplitWords("a\nb"), ElementsAre("a", "\n", "b"));
}

TEST(ByteBpeTest, LearnsTheMostFrequentPairFirst) {
  const ByteBpe bpe = ByteBpe::Train(kWords, 2 + 256 + 2);
  ASSERT_EQ(bpe.merges().size(), 2u);  // "es" 9 times, then "est"
  EXPECT_EQ(bpe.Decode({258}), "es");
  EXPECT_EQ(bpe.Decode({259}), "est");
  EXPECT_THAT(bpe.Encode(" lest"), ElementsAre(2 + ' ', 2 + 'l', 259));
}

TEST(ByteBpeTest, TheSameCountsLeadToTheSameMerges) {
  EXPECT_EQ(ByteBpe::Train(kWords, 270).merges(), ByteBpe::Train(kWords, 270).merges());
}

TEST(ByteBpeTest, StopsWhenNoPairIsSeenTwice) {
  EXPECT_EQ(ByteBpe::Train({{"abc", 1}}, 400).vocab_size(), 258);
}

TEST(ByteBpeTest, EveryByteComesBack) {
  const ByteBpe bpe = ByteBpe::Train(kWords, 270);
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  for (const std::string& text : {all, std::string(" the newest, lowest\n\n  caf\xc3\xa9 isn't wide"), std::string()})
    EXPECT_EQ(bpe.Decode(bpe.Encode(text)), text);
}

TEST(ByteBpeTest, ComesBackFromItsTokenizerJson) {
  const ByteBpe bpe = ByteBpe::Train(kWords, 270);
  const auto again = ByteBpe::FromJson(nlohmann::json::parse(bpe.ToJson().dump()));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->merges(), bpe.merges());
  EXPECT_EQ(bpe.ToJson()["model"]["vocab"]["\xc4\xa0"], 2 + ' ');  // a space prints as U+0120
  EXPECT_EQ(bpe.ToJson()["model"]["vocab"].size(), 270u);
}

TEST(ByteBpeTest, ExtendedKeepsItsIdsAndFindsAddedTokens) {
  const ByteBpe bpe = ByteBpe::Train(kWords, 262);
  const ByteBpe chat = bpe.Extended({{" lowest", 9}}, 266, {{"<|end|>", true}, {"<call>", false}});
  EXPECT_EQ(chat.vocab_size(), 266);
  EXPECT_EQ(std::vector<ByteBpe::Merge>(chat.merges().begin(), chat.merges().begin() + 4), bpe.merges());
  EXPECT_EQ(chat.first_added_id(), 264);
  const std::vector<int> ids = chat.Encode("lo<call>w<|end|>");
  EXPECT_THAT(ids, ElementsAre(2 + 'l', 2 + 'o', 265, 2 + 'w', 264));
  EXPECT_EQ(chat.Decode(ids), "lo<call>w");
  const auto again = ByteBpe::FromJson(nlohmann::json::parse(chat.ToJson().dump()));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->Encode("lo<call>w<|end|>"), ids);
}

TEST(ByteBpeTest, RejectsWhatItDidNotWrite) {
  EXPECT_FALSE(ByteBpe::FromJson(nlohmann::json::parse("[]")).ok());
  EXPECT_FALSE(ByteBpe::FromJson(nlohmann::json::parse(R"({"model": {"vocab": {"a": 5}, "merges": ["a b"]}})")).ok());
}

}  // namespace
}  // namespace lime::train
