// One behaviour at a time, on tokenizers small enough to read; hostile files; large prompts.
#include "coordinator/text/tokenizer.h"

#include <gmock/gmock.h>

#include <ctime>

#include "tests/cases.h"
#include "tests/coordinator/small_tokenizers.h"
#include "tests/coordinator/text_fixtures.h"

namespace lime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;
using Piece = v1::sentencepiece::ModelProto::SentencePiece;
using namespace std::string_literals;
using v1::sentencepiece::TrainerSpec;

// A word-level view of a pre-tokenizer or normalizer: every character is a piece, and "|" between
// words is seen through ids.
TokenizerJson CharJson(const std::string& characters) {
  TokenizerJson vocab;
  int next = 0;
  for (size_t at = 0; at < characters.size();) {
    const size_t length = static_cast<uint8_t>(characters[at]) < 0x80 ? 1 : static_cast<uint8_t>(characters[at]) < 0xE0 ? 2 : 3;
    vocab[characters.substr(at, length)] = next++;
    at += length;
  }
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", TokenizerJson::array()}}}, {"decoder", {{"type", "Fuse"}}}};
}

std::vector<std::string> Split(const TokenizerJson& pre_tokenizer, const std::string& text, size_t start_bytes = 1) {
  const auto steps = ParsePreTokenizer(pre_tokenizer);
  if (!steps.ok()) return {std::string(steps.status().message())};
  Words words{text, {{{0, text.size()}, start_bytes}}};
  for (const auto& step : *steps) {
    if (const auto status = step(words); !status.ok()) return {std::string(status.message())};
  }
  std::vector<std::string> result;
  for (const auto& word : words.words) result.emplace_back(words.Text(word));
  return result;
}

TokenizerJson SplitJson(const TokenizerJson& pattern, const std::string& behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
}

TEST(PreTokenizerTest, SplitBehaviors) {
  const TokenizerJson dash = {{"String", "-"}};
  const std::string text = "the-final--countdown";
  EXPECT_THAT(Split(SplitJson(dash, "Isolated"), text), ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(Split(SplitJson(dash, "Removed"), text), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(Split(SplitJson(dash, "MergedWithPrevious"), text), ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(Split(SplitJson(dash, "MergedWithNext"), text), ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(Split(SplitJson(dash, "Contiguous"), text), ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(Split(SplitJson(dash, "Removed", true), text), ElementsAre("-", "-", "-"));
  EXPECT_THAT(Split(SplitJson({{"Regex", "\\d+"}}, "Isolated"), "a12b"), ElementsAre("a", "12", "b"));
  EXPECT_THAT(Split(SplitJson({{"Regex", "(?=b)"}}, "Isolated"), "abb"), ElementsAre("a", "b", "b"));
}

TEST(PreTokenizerTest, EachKind) {
  EXPECT_THAT(Split({{"type", "Digits"}, {"individual_digits", true}}, "a12"), ElementsAre("a", "1", "2"));
  EXPECT_THAT(Split({{"type", "Digits"}}, "a12b"), ElementsAre("a", "12", "b"));
  EXPECT_THAT(Split({{"type", "Punctuation"}}, "a,$b"), ElementsAre("a", ",", "$", "b"));
  EXPECT_THAT(Split({{"type", "Whitespace"}}, "Hey, you  there!"), ElementsAre("Hey", ",", "you", "there", "!"));
  EXPECT_THAT(Split({{"type", "WhitespaceSplit"}}, "Hey, you\n there!"), ElementsAre("Hey,", "you", "there!"));
  EXPECT_THAT(Split({{"type", "CharDelimiterSplit"}, {"delimiter", "|"}}, "a|b||c"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(Split({{"type", "Whitespace"}}, "\u0645\u06CC\u200C\u062E \u24B6b \u00BDx"),
              ElementsAre("\u0645\u06CC\u200C\u062E", "\u24B6b", "\u00BD", "x"));
  EXPECT_THAT(Split({{"type", "BertPreTokenizer"}}, "a, b"), ElementsAre("a", ",", "b"));
  EXPECT_THAT(Split({{"type", "FixedLength"}, {"length", 2}}, "äbcde"), ElementsAre("äb", "cd", "e"));
  EXPECT_THAT(Split({{"type", "FixedLength"}, {"length", 0}}, "a"), ElementsAre(HasSubstr("has length 0")));
  EXPECT_THAT(Split({{"type", "ByteLevel"}, {"add_prefix_space", true}}, "Hi you"), ElementsAre("\u0120Hi", "\u0120you"));
  EXPECT_THAT(Split({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}, "a b"), ElementsAre("a\u0120b"));
}

TEST(PreTokenizerTest, MetaspacePrependsByItsScheme) {
  const auto metaspace = [](const char* scheme, bool split) {
    return TokenizerJson{{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", split}};
  };
  EXPECT_THAT(Split(metaspace("always", true), "a b", 0), ElementsAre("\u2581a", "\u2581b"));
  EXPECT_THAT(Split(metaspace("first", true), "a b", 1), ElementsAre("\u2581a", "\u2581b"));
  EXPECT_THAT(Split(metaspace("first", true), "a b", 0), ElementsAre("a", "\u2581b"));
  EXPECT_THAT(Split(metaspace("never", false), "a b"), ElementsAre("a\u2581b"));
  EXPECT_THAT(Split({{"type", "Metaspace"}, {"add_prefix_space", false}}, "a"), ElementsAre("a"));
}

std::string NormalizeWith(const TokenizerJson& normalizer, const std::string& text) {
  const auto steps = ParseNormalizer(normalizer);
  if (!steps.ok()) return std::string(steps.status().message());
  NormalizedText normalized{text, 1};
  return Normalize(*steps, normalized).ok() ? normalized.text : "error";
}

TEST(NormalizerTest, EachKind) {
  EXPECT_EQ(NormalizeWith({{"type", "NFC"}}, "e\u0301"), "\u00E9");
  EXPECT_EQ(NormalizeWith({{"type", "NFKC"}}, "\uFB01"), "fi");
  EXPECT_EQ(NormalizeWith({{"type", "Lowercase"}}, "ÀB"), "àb");
  EXPECT_EQ(NormalizeWith({{"type", "Prepend"}, {"prepend", "_"}}, "a"), "_a");
  EXPECT_EQ(NormalizeWith({{"type", "Prepend"}, {"prepend", "_"}}, ""), "");
  EXPECT_EQ(NormalizeWith({{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}}, " a "), "a ");
  EXPECT_EQ(NormalizeWith({{"type", "Replace"}, {"pattern", {{"Regex", "a+"}}}, {"content", "b"}}, "aaca"), "bcb");
  EXPECT_EQ(
      NormalizeWith({{"type", "Sequence"}, {"normalizers", {TokenizerJson{{"type", "NFD"}}, TokenizerJson{{"type", "StripAccents"}}}}},
                    "\u00E9"),
      "e");
  EXPECT_EQ(NormalizeWith({{"type", "Lowercase"}}, "\u0130\u03A3"), "i\u0307\u03C3");
  EXPECT_EQ(NormalizeWith({{"type", "Nmt"}}, "a\u0001\u200Bb\tc\uFEFF"), "a b c ");
  EXPECT_EQ(NormalizeWith({{"type", "BertNormalizer"}}, "\u4E2D\u00C9\tx\u0000"s), " \u4E2D e x");
  EXPECT_EQ(NormalizeWith({{"type", "BertNormalizer"}, {"lowercase", false}, {"handle_chinese_chars", false}}, "\u4E2D\u00C9"),
            "\u4E2D\u00C9");
  EXPECT_EQ(NormalizeWith({{"type", "NFD"}}, "a\u0315\u0898\u0323"), "a\u0315\u0898\u0323")
      << "U+0898 is younger than the library's tables";
  EXPECT_THAT(NormalizeWith({{"type", "Precompiled"}, {"precompiled_charsmap", "%"}}, ""), HasSubstr("is not Base64"));
  EXPECT_THAT(NormalizeWith({{"type", "Cyrillic"}}, ""), HasSubstr("normalizer \"Cyrillic\" is not supported; supported are NFC"));
}

TEST(AddedTokensTest, FlagsDecideWhereTheyMatch) {
  TokenizerJson json = CharJson("ab _x");
  json["added_tokens"] = {{{"id", 5}, {"content", "<l>"}, {"lstrip", true}, {"normalized", false}},
                          {{"id", 6}, {"content", "<r>"}, {"rstrip", true}, {"normalized", false}},
                          {{"id", 7}, {"content", "ab"}, {"single_word", true}, {"normalized", false}},
                          {{"id", 8}, {"content", "<s>"}, {"special", true}},
                          {{"id", 9}, {"content", "<s><s>"}, {"special", true}}};
  const auto tokenizer = FromJsonOrDie(json);
  EXPECT_EQ(*tokenizer->Encode("a  <l> b"), (Ids{0, 5, 2, 1}));
  EXPECT_EQ(*tokenizer->Encode("a <r>  b"), (Ids{0, 2, 6, 1}));
  EXPECT_EQ(*tokenizer->Encode("ab xab ab"), (Ids{7, 2, 4, 0, 1, 2, 7}));
  EXPECT_EQ(*tokenizer->Encode("<s>a<s><s>"), (Ids{8, 0, 9}));
  EXPECT_EQ(*tokenizer->Encode("<s>a", {.parse_special = false}), (Ids{0})) << "characters without a piece and no unknown token vanish";
  EXPECT_EQ(tokenizer->Decode(Ids{8, 0}), "a");
  EXPECT_EQ(tokenizer->Decode(Ids{8, 0}, {.skip_special = false}), "<s>a");
}

TEST(AddedTokensTest, TokensInStrippedWhiteSpaceAreFoundToo) {
  TokenizerJson json = ByteLevelJson();
  json["added_tokens"] = {{{"id", 260}, {"content", "<r>"}, {"rstrip", true}, {"special", true}},
                          {{"id", 261}, {"content", "\n\n"}, {"normalized", false}},
                          {{"id", 262}, {"content", "  "}, {"lstrip", true}, {"normalized", false}}};
  json["post_processor"] = nullptr;
  const auto tokenizer = FromJsonOrDie(json);
  EXPECT_EQ(*tokenizer->Encode("<r>\n\nx"), (Ids{260, 261, 'x'}));
  EXPECT_EQ(*tokenizer->Encode("<r>\n\n x"), (Ids{260, 261, ' ', 'x'}));
  EXPECT_EQ(*tokenizer->Encode("<r>  x"), (Ids{260, 'x'})) << "nothing is left of a token that takes what is taken";
}

TEST(AddedTokensTest, APieceKeepsItsId) {
  TokenizerJson json = ByteLevelJson();
  json["added_tokens"].push_back({{"id", 300}, {"content", "A"}});
  const auto tokenizer = FromJsonOrDie(json);
  EXPECT_EQ(*tokenizer->Encode("A"), (Ids{256, 'A'}));
  EXPECT_EQ(tokenizer->TokenToId("A"), 'A');
}

TokenizerJson Added(const std::string& content, int id) {
  return {{"id", id}, {"content", content}, {"special", true}};
}

TEST(AddedTokensTest, IdsAreCountedOnFromThePiecesAsTheLibraryDoes) {
  TokenizerJson gap = ByteLevelJson();
  gap["model"]["vocab"]["zzz"] = 300;
  gap["added_tokens"] = {Added("zzz", 300), Added("<x>", 261), Added("<x>", 262)};
  EXPECT_EQ(*FromJsonOrDie(gap)->Encode("<x>zzz", {.add_special = false}), (Ids{261, 300})) << "a content counts once";
  const auto config = ParseTokenizerConfig({.tokenizer_config = {{"pad_token", "<p>"}}});
  EXPECT_EQ((*Tokenizer::FromJson(gap.dump(), "test", *config))->TokenToId("<p>"), 301) << "behind the tokenizer's own";
}

TEST(AddedTokensTest, AnIdThatTheLibraryNeverReturnsIsRefusedWhereItIsMet) {
  const auto error = [](const std::vector<TokenizerJson>& added, const TokenizerConfig& config = {}) {
    TokenizerJson json = ByteLevelJson();
    json["added_tokens"] = added;
    const auto tokenizer = Tokenizer::FromJson(json.dump(), "test", config);
    if (!tokenizer.ok()) return std::string(tokenizer.status().message());
    EXPECT_TRUE((*tokenizer)->Encode("ab").ok()) << "the text does not have it";
    return std::string((*tokenizer)->Encode("a<y>b<x>").status().message());
  };
  EXPECT_THAT(error({Added("<x>", 300)}),
              HasSubstr("\"<x>\", which the text has, states the id 300, but the tokenizers library gives it 260"));
  EXPECT_THAT(error({Added("<y>", 261), Added("<x>", 260)}), HasSubstr("\"<y>\", which the text has, states the id 261"));
  EXPECT_THAT(error({Added("<x>", 260), Added("<y>", 260)}), HasSubstr("two added tokens have the id 260"));
  const auto config = ParseTokenizerConfig({.tokenizer_config = {{"added_tokens_decoder", {{"300", {{"content", "<x>"}}}}}}});
  EXPECT_THAT(error({}, *config), HasSubstr("\"<x>\", which the text has, states the id 300"));
  TokenizerJson gap = ByteLevelJson();
  gap["model"]["vocab"].erase("<s>");
  gap["model"]["vocab"].erase("</s>");
  const auto holes = FromJsonOrDie(gap);
  EXPECT_TRUE(holes->Encode("ab", {.add_special = false}).ok());
  EXPECT_THAT(holes->Encode("<s>", {.add_special = false}).status().message(),
              HasSubstr("states the id 256, but the tokenizers library gives it 258"));
  gap["added_tokens"] = TokenizerJson::array();
  EXPECT_THAT(
      Tokenizer::FromJson(gap.dump(), "test", *ParseTokenizerConfig({.tokenizer_config = {{"pad_token", "<p>"}}})).status().message(),
      HasSubstr("id 258 belongs to the piece \"ab\" and to the added token \"<p>\""));
}

TEST(AddedTokensTest, NormalizedTokensAreFoundInNormalizedText) {
  TokenizerJson json = CharJson("ab");
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"] = {{{"id", 2}, {"content", "Tok"}, {"normalized", true}}, {{"id", 3}, {"content", "RAW"}, {"normalized", false}}};
  const auto tokenizer = FromJsonOrDie(json);
  EXPECT_EQ(*tokenizer->Encode("AtokTOKRAWraw"), (Ids{0, 2, 2, 3, 0}));
}

TEST(AddedTokensTest, OfTokensWithOneNormalizedFormTheFirstIsFoundSpecialOnesAheadOfTheOthers) {
  TokenizerJson json = CharJson("ab");
  json["normalizer"] = {{"type", "Lowercase"}};
  const auto token = [](int id, const char* content, bool special) {
    return TokenizerJson{{"id", id}, {"content", content}, {"special", special}, {"normalized", true}};
  };
  json["added_tokens"] = {token(2, "TOK", false), token(3, "Tok", false)};
  EXPECT_EQ(*FromJsonOrDie(json)->Encode("tok"), (Ids{2}));
  json["added_tokens"] = {token(2, "TOK", false), token(3, "Tok", true), token(4, "tOK", true)};
  EXPECT_EQ(*FromJsonOrDie(json)->Encode("tok"), (Ids{3}));
}

TEST(AddedTokensTest, ATokenListedAgainHasTheLastFlagsAndStaysSpecial) {
  TokenizerJson json = CharJson("ab");
  json["added_tokens"] = {{{"id", 2}, {"content", "<x>"}, {"special", true}},
                          {{"id", 3}, {"content", "<x>"}, {"special", false}, {"rstrip", true}}};
  const auto tokenizer = FromJsonOrDie(json);
  EXPECT_EQ(*tokenizer->Encode("a<x>  b"), (Ids{0, 2, 1}));
  EXPECT_TRUE(tokenizer->IsSpecial(2));
  EXPECT_EQ(tokenizer->Decode(Ids{0, 2, 1}), "ab");
}

TEST(BpeTest, UnknownCharactersFollowThePolicy) {
  TokenizerJson json = CharJson("ab");
  json["model"]["vocab"]["<unk>"] = 2;
  json["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(*FromJsonOrDie(json)->Encode("axyb"), (Ids{0, 2, 2, 1}));
  json["model"]["fuse_unk"] = true;
  EXPECT_EQ(*FromJsonOrDie(json)->Encode("axybz"), (Ids{0, 2, 1, 2}));
  json["model"]["byte_fallback"] = true;
  json["model"]["vocab"]["<0x78>"] = 3;
  EXPECT_EQ(*FromJsonOrDie(json)->Encode("axb"), (Ids{0, 3, 1})) << "x has a byte piece";
  EXPECT_EQ(*FromJsonOrDie(json)->Encode("ayb"), (Ids{0, 2, 1})) << "y has none";
}

TEST(BpeTest, AnUnknownTokenThatIsMissingIsAnErrorOnlyWhereItIsNeeded) {
  TokenizerJson json = CharJson("ab");
  json["model"]["unk_token"] = "<unk>";
  const auto tokenizer = FromJsonOrDie(json);
  EXPECT_EQ(*tokenizer->Encode("ab"), (Ids{0, 1}));
  EXPECT_THAT(tokenizer->Encode("axb").status().message(),
              HasSubstr("no piece covers \"x\", and unk_token \"<unk>\" is not in the vocabulary"));
}

TEST(UnigramTest, ScoresAreDoubles) {
  const TokenizerJson vocab = TokenizerJson::array({{"<unk>", 0.0}, {"x", -2.657}, {"a", -7.983}, {"aa", -10.548}});
  const auto tokenizer = FromJsonOrDie({{"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}}}});
  EXPECT_EQ(*tokenizer->Encode("xaaa"), (Ids{1, 3, 2})) << "(x + aa) + a is above (x + a) + aa";
}

TEST(UnigramTest, WithoutAnUnknownTokenUnknownTextIsAnError) {
  const auto tokenizer = FromJsonOrDie({{"model", {{"type", "Unigram"}, {"vocab", TokenizerJson::array({{"a", -1.0}})}}}});
  EXPECT_EQ(*tokenizer->Encode("a"), (Ids{0}));
  EXPECT_THAT(tokenizer->Encode("b").status().message(), HasSubstr("the model has no unk_id"));
  const TokenizerJson vocab = TokenizerJson::array({{"a", -1.0}, {"<0x62>", -2.0}, {"bc", -3.0}});
  const auto bytes = FromJsonOrDie({{"model", {{"type", "Unigram"}, {"byte_fallback", true}, {"vocab", vocab}}}});
  EXPECT_EQ(*bytes->Encode("a"), (Ids{0}));
  for (const char* text : {"b", "bc"}) {
    EXPECT_THAT(bytes->Encode(text).status().message(), HasSubstr("the model has no unk_id")) << "although bytes or another piece cover it";
  }
}

TEST(DecoderTest, BrokenByteTokensBecomeOneReplacementEach) {
  const auto tokenizer = FromModelOrDie(SmallModel(TrainerSpec::BPE, true, {{"a", 0}}));
  const auto byte = [](int value) { return value + 3; };
  EXPECT_EQ(tokenizer->Decode(Ids{byte(0xE4), byte(0xBD)}), "\uFFFD\uFFFD");
  EXPECT_EQ(tokenizer->Decode(Ids{byte(0xE4), byte(0xBD), byte(0xA0)}), "\u4F60");
  EXPECT_EQ(tokenizer->Decode(Ids{byte(0xE4), byte(0xBD), 259}), "\uFFFD\uFFFDa");
}

TEST(NormalizerTest, WhatIsStrippedIsNotTheStart) {
  TokenizerJson json = CharJson("a\u2581");
  json["normalizer"] = {{"type", "Strip"}};
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"prepend_scheme", "first"}};
  const auto tokenizer = FromJsonOrDie(json);
  EXPECT_EQ(*tokenizer->Encode("a"), (Ids{1, 0}));
  EXPECT_EQ(*tokenizer->Encode(" a"), (Ids{0}));
}

TEST(NormalizerTest, AllThatTheFirstCharacterBecameIsTheStart) {
  TokenizerJson json = CharJson("(a)\u2581");
  json["normalizer"] = {{"type", "NFKC"}};
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {TokenizerJson{{"type", "Punctuation"}}, TokenizerJson{{"type", "Metaspace"}, {"prepend_scheme", "first"}}}}};
  const auto tokenizer = FromJsonOrDie(json);
  EXPECT_EQ(*tokenizer->Encode("\u249C"), (Ids{3, 0, 3, 1, 3, 2})) << "(a) in one character";
  EXPECT_EQ(*tokenizer->Encode("(a)"), (Ids{3, 0, 1, 2}));
}

TEST(BpeTest, MergesApplyByRankThenFromLeftToRight) {
  TokenizerJson json = CharJson("abc");
  for (const char* piece : {"aa", "ab", "bc", "abc"}) json["model"]["vocab"][piece] = json["model"]["vocab"].size();
  json["model"]["merges"] = {TokenizerJson{"b", "c"}, TokenizerJson("a a"), TokenizerJson("a bc"), TokenizerJson("a b")};
  const auto tokenizer = FromJsonOrDie(json);
  EXPECT_EQ(*tokenizer->Encode("aaa"), (Ids{3, 0}));
  EXPECT_EQ(*tokenizer->Encode("aabc"), (Ids{3, 5}));
  EXPECT_EQ(*tokenizer->Encode("babc"), (Ids{1, 6}));
  json["model"]["ignore_merges"] = true;
  json["model"]["vocab"]["aabc"] = 7;
  EXPECT_EQ(*FromJsonOrDie(json)->Encode("aabc"), (Ids{7}));
}

TEST(BpeTest, PrefixAndSuffixOfSubwords) {
  TokenizerJson json = {{"model",
                         {{"type", "BPE"},
                          {"vocab", {{"a", 0}, {"##b", 1}, {"##b</w>", 2}, {"a##b</w>", 9}, {"ab</w>", 3}}},
                          {"merges", {"a ##b</w>"}},
                          {"continuing_subword_prefix", "##"},
                          {"end_of_word_suffix", "</w>"}}}};
  EXPECT_EQ(*FromJsonOrDie(json)->Encode("ab"), (Ids{3}));
  EXPECT_EQ(*FromJsonOrDie(json)->Encode("abb"), (Ids{0, 1, 2}));
}

// Ids behind <unk>, <s>, </s>.
TEST(SentencePieceTest, BpeJoinsTheBestScoreFirst) {
  const auto tokenizer =
      FromModelOrDie(SmallModel(TrainerSpec::BPE, false, {{"\u2581", -9}, {"a", -9}, {"b", -9}, {"ab", -2}, {"\u2581a", -1}, {"ba", -3}}));
  EXPECT_EQ(*tokenizer->Encode("ab", {.add_special = false}), (Ids{7, 5}));
  EXPECT_EQ(*tokenizer->Encode("bab"), (Ids{1, 3, 5, 6}));
  EXPECT_EQ(*tokenizer->Encode("bqzb"), (Ids{1, 3, 5, 0, 5})) << "neighbouring unknowns are one";
  EXPECT_EQ(tokenizer->Decode(Ids{1, 7, 5, 3, 4}), "ab a");
}

TEST(SentencePieceTest, UnusedPiecesComeApartAgain) {
  const auto tokenizer = FromModelOrDie(
      SmallModel(TrainerSpec::BPE, false, {{"\u2581", -9}, {"a", -9}, {"b", -9}, {"c", -9}, {"ab", -1, Piece::UNUSED}, {"abc", -2}}));
  EXPECT_EQ(*tokenizer->Encode("ab", {.add_special = false}), (Ids{3, 4, 5}));
  EXPECT_EQ(*tokenizer->Encode("abc", {.add_special = false}), (Ids{3, 8}));
}

TEST(SentencePieceTest, CharactersWithoutAPieceStillJoin) {
  const auto tokenizer = FromModelOrDie(SmallModel(TrainerSpec::BPE, true, {{"\u2581", -9}, {"xy", -1}}));
  const int32_t xy = *tokenizer->TokenToId("xy");
  EXPECT_EQ(*tokenizer->Encode("xy", {.add_special = false}), (Ids{xy - 1, xy}));
  EXPECT_EQ(*tokenizer->Encode("x", {.add_special = false}), (Ids{xy - 1, 3 + 'x'}));
}

TEST(SentencePieceTest, UserDefinedPiecesAreNeverCut) {
  const std::vector<SmallPiece> pieces = {{"\u2581", -2}, {"a", -3}, {"b", -3}, {"ab", -0.5}, {"ba", 0, Piece::USER_DEFINED}};
  EXPECT_EQ(*FromModelOrDie(SmallModel(TrainerSpec::BPE, false, pieces))->Encode("abab", {.add_special = false}), (Ids{3, 4, 7, 5}));
  EXPECT_EQ(*FromModelOrDie(SmallModel(TrainerSpec::UNIGRAM, false, pieces))->Encode("ba", {.add_special = false}), (Ids{3, 7}));
}

TEST(SentencePieceTest, UnigramChoosesTheMostProbablePath) {
  const auto tokenizer = FromModelOrDie(SmallModel(
      TrainerSpec::UNIGRAM, true, {{"\u2581", -2}, {"a", -3}, {"b", -3}, {"c", -3}, {"ab", -4}, {"bc", -3.5}, {"\u2581abc", -20}}));
  const int32_t base = *tokenizer->TokenToId("\u2581");
  EXPECT_EQ(*tokenizer->Encode("abc", {.add_special = false}), (Ids{base, base + 1, base + 5}));
  EXPECT_EQ(*tokenizer->Encode("aq", {.add_special = false}), (Ids{base, base + 1, 3 + 'q'}));
  EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode("abc qa")), "abc qa");
}

TEST(SentencePieceTest, SpacesFollowTheNormalizer) {
  auto model = SmallModel(TrainerSpec::BPE, false, {{"\u2581", -9}, {"a", -9}});
  EXPECT_EQ(*FromModelOrDie(model)->Encode(" a  a ", {.add_special = false}), (Ids{3, 3, 4, 3, 3, 4, 3}));
  model.mutable_normalizer_spec()->set_remove_extra_whitespaces(true);
  EXPECT_EQ(*FromModelOrDie(model)->Encode(" a  a ", {.add_special = false}), (Ids{3, 4, 3, 4}));
  EXPECT_EQ(*FromModelOrDie(model)->Encode("   ", {.add_special = false}), Ids{});
  model.mutable_normalizer_spec()->set_add_dummy_prefix(false);
  EXPECT_EQ(*FromModelOrDie(model)->Encode(" a  a ", {.add_special = false}), (Ids{4, 3, 4}));
}

// A double array by hand: the byte 'X' at the root leads to a leaf whose value is the offset of the
// replacement.
TEST(SentencePieceTest, CharsmapReplaces) {
  std::vector<uint32_t> units(256, 0);
  units[0] = 1u << 10;                                 // the root's children lie at 1 ^ label
  units[1 ^ 'X'] = (2u << 10) | 0x100 | uint8_t{'X'};  // has a leaf at (1 ^ 'X') ^ 2
  units[(1 ^ 'X') ^ 2] = 0x80000000u | 0;
  std::string blob;
  const auto append = [&](uint32_t value) {
    for (int i = 0; i < 4; ++i) blob.push_back(static_cast<char>(value >> (8 * i)));
  };
  append(static_cast<uint32_t>(units.size() * 4));
  for (const uint32_t unit : units) append(unit);
  blob += std::string("aa\0", 3);
  auto model = SmallModel(TrainerSpec::BPE, false, {{"\u2581", -9}, {"a", -9}});
  model.mutable_normalizer_spec()->set_precompiled_charsmap(blob);
  EXPECT_EQ(*FromModelOrDie(model)->Encode("Xa", {.add_special = false}), (Ids{3, 4, 4, 4}));
  model.mutable_normalizer_spec()->set_precompiled_charsmap("\xFF\xFF\xFF\x7Fxx");
  EXPECT_THAT(Tokenizer::FromSentencePiece(model.SerializeAsString(), "m").status().message(), HasSubstr("precompiled_charsmap"));
}

TEST(SentencePieceTest, HostileModelsAreErrors) {
  const auto error = [](const v1::sentencepiece::ModelProto& model) {
    return std::string(Tokenizer::FromSentencePiece(model.SerializeAsString(), "the.model").status().message());
  };
  EXPECT_THAT(std::string(Tokenizer::FromSentencePiece("\xFF\xFF", "the.model").status().message()),
              HasSubstr("the.model: is truncated, or is not a SentencePiece model"));
  EXPECT_THAT(error(SmallModel(TrainerSpec::WORD, false, {})), HasSubstr("model type 3 is not supported"));
  EXPECT_THAT(error(SmallModel(TrainerSpec::BPE, false, {{"a", 0}, {"a", 0}})), HasSubstr("has the ids 3 and 4"));
  EXPECT_THAT(error(SmallModel(TrainerSpec::BPE, false, {{"a", NAN}})), HasSubstr("piece 3 has a score that is not finite"));
  EXPECT_THAT(error(SmallModel(TrainerSpec::BPE, false, {{"\xFF", 0}})), HasSubstr("piece 3 is empty"));
  EXPECT_THAT(error(SmallModel(TrainerSpec::BPE, false, {{std::string(600, 'a'), 0}})), HasSubstr("longer than 512"));
}

std::string JsonError(const TokenizerJson& patch) {
  TokenizerJson json = ByteLevelJson();
  json.merge_patch(patch);
  return std::string(Tokenizer::FromJson(json.dump(), "the.json").status().message());
}

TEST(TokenizerJsonTest, HostileFilesAreErrorsThatNameTheCause) {
  EXPECT_EQ(JsonError(TokenizerJson::object()), "");
  EXPECT_THAT(JsonError({{"model", {{"type", "WordPiece"}}}}),
              HasSubstr("model \"WordPiece\" is not supported; supported are BPE and Unigram"));
  EXPECT_EQ(JsonError({{"model", {{"merges", {"#version: 0.2", "a b"}}}}}), "");
  EXPECT_THAT(JsonError({{"model", {{"merges", {"a zz"}}}}}), HasSubstr("merge 0: piece \"zz\" is not in the vocabulary"));
  EXPECT_THAT(JsonError({{"model", {{"merges", {"b a"}}}}}), HasSubstr("piece \"ba\" is not in the vocabulary"));
  EXPECT_THAT(JsonError({{"model", {{"merges", {"abc"}}}}}), HasSubstr("merge 0: it is neither"));
  EXPECT_THAT(JsonError({{"model", {{"merges", {7}}}}}), HasSubstr("merge 0: it is neither"));
  EXPECT_THAT(JsonError({{"model", {{"merges", 3}}}}), HasSubstr("\"merges\" is not an array"));
  EXPECT_THAT(JsonError({{"model", {{"vocab", {{"abc", 258}}}}}}), HasSubstr("id 258 belongs to"));
  EXPECT_THAT(JsonError({{"model", {{"vocab", {{"abc", -1}}}}}}), HasSubstr("is not a whole number"));
  EXPECT_THAT(JsonError({{"model", {{"vocab", {{"abc", 1u << 31}}}}}}), HasSubstr("has id 2147483648"));
  EXPECT_THAT(JsonError({{"model", {{"vocab", {{"abc", UINT64_MAX}}}}}}), HasSubstr("is not a whole number"));
  EXPECT_THAT(JsonError({{"model", {{"dropout", 0.1}}}}), HasSubstr("dropout is not supported"));
  EXPECT_THAT(JsonError({{"model", 1}}), HasSubstr("\"model\" is missing"));
  EXPECT_THAT(JsonError({{"pre_tokenizer", {{"type", "UnicodeScripts"}}}}), HasSubstr("pre_tokenizer \"UnicodeScripts\" is not supported"));
  EXPECT_THAT(JsonError({{"pre_tokenizer", {{"type", 5}}}}), HasSubstr("field \"type\" is number"));
  EXPECT_THAT(JsonError({{"decoder", {{"type", "CTC"}}}}), HasSubstr("decoder \"CTC\" is not supported"));
  EXPECT_THAT(JsonError({{"post_processor", {{"type", "X"}}}}), HasSubstr("post_processor \"X\" is not supported"));
  EXPECT_THAT(JsonError({{"post_processor", {{"special_tokens", {{"<s>", {{"ids", {999}}}}}}}}}),
              HasSubstr("adds id 999 to a vocabulary of 260"));
  EXPECT_THAT(JsonError({{"post_processor", {{"single", TokenizerJson::array()}}}}), HasSubstr("has no Sequence"));
  EXPECT_THAT(JsonError({{"added_tokens", {{{"id", 97}, {"content", "<x>"}}}}}), HasSubstr("id 97 belongs to the piece \"a\""));
  EXPECT_THAT(JsonError({{"added_tokens", {{{"id", int64_t{1} << 40}, {"content", "<x>"}}}}}), HasSubstr("added token id"));
  EXPECT_THAT(JsonError({{"added_tokens", "x"}}), HasSubstr("\"added_tokens\" is not an array"));
  const TokenizerJson adds = ByteLevelJson()["post_processor"];
  EXPECT_EQ(JsonError({{"post_processor", {{"type", "Sequence"}, {"processors", {adds, {{"type", "ByteLevel"}}}}}}}), "");
  EXPECT_THAT(JsonError({{"post_processor", {{"type", "Sequence"}, {"processors", {adds, adds}}}}}),
              HasSubstr("\"TemplateProcessing\" after another processor that adds tokens is not supported"));
}

TEST(TokenizerJsonTest, BrokenJsonIsAnErrorThatNamesTheFile) {
  EXPECT_THAT(Tokenizer::FromJson("{", "the.json").status().message(), HasSubstr("the.json: is not valid JSON"));
  EXPECT_THAT(Tokenizer::FromJson(std::string(1 << 20, '['), "the.json").status().message(), HasSubstr("nests more than 64 levels"));
  EXPECT_FALSE(Tokenizer::FromJson("null", "the.json").ok());
  EXPECT_THAT(Tokenizer::Load("/nonexistent").status().message(), HasSubstr("/nonexistent: holds no tokenizer.json"));
}

TEST(TokenizerTest, ConfigNamesBosAndEos) {
  const auto config =
      ParseTokenizerConfig({.tokenizer_config = {{"bos_token", {{"content", "<s>"}}}, {"eos_token", "</s>"}, {"add_eos_token", true}}});
  ASSERT_TRUE(config.ok());
  const auto tokenizer = Tokenizer::FromJson(ByteLevelJson().dump(), "test", *config);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->bos_id(), 256);
  EXPECT_EQ((*tokenizer)->eos_id(), 257);
  EXPECT_EQ(*(*tokenizer)->Encode("a"), (Ids{256, 'a', 257}));
  EXPECT_FALSE(ParseTokenizerConfig({.tokenizer_config = {{"bos_token", 7}}}).ok());
}

TEST(TokenizerTest, IdsOutOfRangeBecomeNoText) {
  const auto tokenizer = ByteLevelTokenizer();
  EXPECT_EQ(tokenizer->Decode(Ids{-1, 'a', 260, 1 << 30, INT32_MIN, INT32_MAX}), "a");
  EXPECT_EQ(tokenizer->IdToText(-1), "");
  EXPECT_FALSE(tokenizer->IsSpecial(1 << 30));
}

TEST(TokenizerTest, TheLeastIdsOfATextAreKnownWithoutItsIds) {
  const auto tokenizer = ByteLevelTokenizer();  // its longest piece is "</s>"
  EXPECT_EQ(tokenizer->LeastIds("").value(), 1);
  EXPECT_EQ(tokenizer->LeastIds("abc abc<s>abcab", {.add_special = false}).value(), 1 + 2 + 1 + 2);  // the space has two bytes
  EXPECT_EQ(tokenizer->LeastIds(std::string(1000, 'x'), {.add_special = false}).value(), 250);
  TokenizerJson dropping = CharJson("ab");
  dropping["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  EXPECT_EQ(FromJsonOrDie(dropping)->LeastIds(std::string(1000, ' ') + "ab??" + std::string(1000, '?')).value(), 2);
}

// A megabyte of each awkward kind takes about as long as its size says: far below the bound, which
// only a quadratic algorithm exceeds. The time is that of this thread on a core, so other programs do
// not count.
class LargePrompts : public testing::TestWithParam<std::string> {
 protected:
  static double ThreadSeconds() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
};

TEST_P(LargePrompts, NeedLinearTime) {
  LIME_SKIP_WITHOUT_SHARED(SharedDir() / GetParam());
  const Tokenizer& tokenizer = SharedTokenizer(GetParam());
  const size_t size = ManyCases() ? 1'000'000 : 100'000;
  std::string mixed, marks = "a";
  for (uint32_t i = 0; mixed.size() < size; ++i) mixed += static_cast<char>('a' + (i * 2654435761u >> 27) % 26);
  while (marks.size() < size) marks += "\u0301\u0323";
  for (const std::string& text : {std::string(size, 'a'), std::string(size, ' '), std::string(size, '\n'), mixed, marks,
                                  std::string(size, '\xFF'), std::string(size, '7'), std::string(size, '<')}) {
    const double begin = ThreadSeconds();
    const auto ids = tokenizer.Encode(text);
    const double seconds = ThreadSeconds() - begin;
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_LT(seconds, 60e-6 * static_cast<double>(size)) << "text of " << text.substr(0, 8);
    std::printf("%-24s %8.8s... %7.3f s %8zu ids\n", GetParam().c_str(), text.c_str(), seconds, ids->size());
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, LargePrompts,
                         testing::Values("tokenizers/llama3", "tokenizers/llama2-spm", "tokenizers/qwen3", "tokenizers/falcon",
                                         "tokenizers/gpt2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '-' || c == '/'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace lime
