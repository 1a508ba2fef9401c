// What stands beside a tokenizer: special tokens, added tokens and flags, read from folders as
// transformers reads them.
#include "coordinator/text/tokenizer_files.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/coordinator/small_tokenizers.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

Ids Encode(const TempDir& folder, const std::string& text) {
  const auto tokenizer = Tokenizer::Load(folder.path());
  if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.status();
  return tokenizer.ok() ? (*tokenizer)->Encode(text).value_or(Ids{-1}) : Ids{};
}

std::string LoadError(const TempDir& folder) {
  return std::string(Tokenizer::Load(folder.path()).status().message());
}

// A tokenizer.json of bytes, <s> and </s>, with BOS in its template.
void WriteJson(const TempDir& folder, const TokenizerJson& config) {
  folder.Write("tokenizer.json", ByteLevelJson().dump());
  folder.Write("tokenizer_config.json", config.dump());
}

// The same as vocab.json with merges.txt, and <pad>.
void WriteVocab(const TempDir& folder, const TokenizerJson& config) {
  TokenizerJson vocab = ByteLevelJson()["model"]["vocab"];
  vocab["<s>"] = 256;
  vocab["</s>"] = 257;
  vocab["<pad>"] = 260;
  folder.Write("vocab.json", vocab.dump());
  folder.Write("merges.txt", "#version: 0.2\na b\nab c\n");
  folder.Write("tokenizer_config.json", config.dump());
}

// tokenizer.model with the bytes and three pieces: ids 0 to 258, "\u2581" 259, "a" 260, "\u2581a"
// 261.
void WriteModel(const TempDir& folder, const TokenizerJson& config) {
  auto model = SmallModel(v1::sentencepiece::TrainerSpec::BPE, true, {{"\u2581", -2}, {"a", -3}, {"\u2581a", -1}});
  folder.Write("tokenizer.model", model.SerializeAsString());
  folder.Write("tokenizer_config.json", config.dump());
}

TEST(TokenizerFlagsTest, AddBosTokenDecidesAgainstTheTemplate) {
  TempDir folder;
  for (const char* name : {"LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast"}) {
    const TokenizerJson config = {{"tokenizer_class", name}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
    TokenizerJson with = config, without = config, both = config;
    with["add_bos_token"] = true;
    without["add_bos_token"] = false;
    both["add_eos_token"] = true;
    WriteJson(folder, with);
    EXPECT_EQ(Encode(folder, "x"), (Ids{256, 'x'})) << name;
    WriteJson(folder, without);
    EXPECT_EQ(Encode(folder, "x"), (Ids{'x'})) << name;
    WriteJson(folder, both);
    EXPECT_EQ(Encode(folder, "x"), (Ids{256, 'x', 257})) << name;
    TokenizerJson bare = ByteLevelJson();
    bare["post_processor"] = nullptr;
    folder.Write("tokenizer.json", bare.dump());
    folder.Write("tokenizer_config.json", with.dump());
    EXPECT_EQ(Encode(folder, "x"), (Ids{256, 'x'})) << name;
  }
}

TEST(TokenizerFlagsTest, LlamaClassesPutBosWithoutAFlag) {
  TempDir folder;
  TokenizerJson bare = ByteLevelJson();
  bare["post_processor"] = nullptr;
  WriteJson(folder, {{"tokenizer_class", "LlamaTokenizer"}});
  folder.Write("tokenizer.json", bare.dump());
  EXPECT_EQ(Encode(folder, "x"), (Ids{256, 'x'}));
  folder.Write("tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"})");
  EXPECT_EQ(Encode(folder, "x"), (Ids{'x'}));
}

TEST(TokenizerFlagsTest, LlamaClassesPutEosWithAFlagAlone) {
  TokenizerJson both = ByteLevelJson();
  TokenizerJson& single = both["post_processor"]["single"];
  single.push_back({{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}});
  both["post_processor"]["special_tokens"]["</s>"] = {{"id", "</s>"}, {"ids", {257}}, {"tokens", {"</s>"}}};
  const auto ids_with = [&](const TokenizerJson& config) {
    TempDir folder;
    folder.Write("tokenizer.json", both.dump());
    folder.Write("tokenizer_config.json", config.dump());
    return Encode(folder, "x");
  };
  for (const char* name : {"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer"}) {
    EXPECT_EQ(ids_with({{"tokenizer_class", name}}), (Ids{256, 'x'})) << name;
    EXPECT_EQ(ids_with({{"tokenizer_class", name}, {"add_eos_token", nullptr}}), (Ids{256, 'x'})) << name;
    EXPECT_EQ(ids_with({{"tokenizer_class", name}, {"eos_token", nullptr}}), (Ids{256, 'x'})) << name;
    EXPECT_EQ(ids_with({{"tokenizer_class", name}, {"add_eos_token", true}}), (Ids{256, 'x', 257})) << name;
  }
  EXPECT_EQ(ids_with({{"tokenizer_class", "PreTrainedTokenizerFast"}}), (Ids{256, 'x', 257}));
}

TEST(TokenizerFlagsTest, OfLlamaClassesAFlagThatIsNullIsOff) {
  TempDir folder;
  WriteJson(folder, {{"tokenizer_class", "LlamaTokenizerFast"}, {"add_bos_token", nullptr}});
  EXPECT_EQ(Encode(folder, "x"), (Ids{'x'}));
}

TEST(TokenizerFlagsTest, OfLlamaClassesATokenThatIsNullCannotBeAdded) {
  TempDir folder;
  const TokenizerJson llama = {{"tokenizer_class", "LlamaTokenizerFast"}};
  const auto with = [&](TokenizerJson fields) {
    fields.update(llama);
    WriteJson(folder, fields);
    return LoadError(folder);
  };
  EXPECT_THAT(with({{"add_bos_token", true}, {"bos_token", nullptr}}), HasSubstr("tokenizer_config.json: field \"bos_token\" is null"));
  EXPECT_THAT(with({{"bos_token", nullptr}}), HasSubstr("\"add_bos_token\" is true for LlamaTokenizer"));
  EXPECT_THAT(with({{"add_eos_token", true}, {"eos_token", nullptr}}), HasSubstr("field \"eos_token\" is null"));
  EXPECT_EQ(with({{"add_bos_token", false}, {"bos_token", nullptr}}), "");
}

TEST(TokenizerFlagsTest, AddPrefixSpaceOfTheConfigurationWins) {
  TempDir json, vocab;
  WriteJson(json, {{"add_prefix_space", true}, {"tokenizer_class", "GPT2Tokenizer"}, {"add_bos_token", false}, {"bos_token", "<s>"}});
  WriteVocab(vocab, {{"add_prefix_space", true}, {"tokenizer_class", "GPT2Tokenizer"}});
  EXPECT_EQ(Encode(json, "x"), (Ids{' ', 'x'}));
  EXPECT_EQ(Encode(vocab, "x"), (Ids{' ', 'x'}));
}

TEST(TokenizerFlagsTest, PrefixOfTokenizerModelFollowsLegacyAndAddPrefixSpace) {
  TempDir folder;
  const TokenizerJson config = {{"tokenizer_class", "LlamaTokenizer"}, {"additional_special_tokens", {"<t>"}}};
  TokenizerJson first = config, none = config;
  first["legacy"] = false;
  none["add_prefix_space"] = false;
  WriteModel(folder, config);
  EXPECT_EQ(Encode(folder, "a<t>a"), (Ids{1, 261, 262, 261}));
  WriteModel(folder, first);
  EXPECT_EQ(Encode(folder, "a<t>a"), (Ids{1, 261, 262, 260}));
  WriteModel(folder, none);
  EXPECT_EQ(Encode(folder, "a<t>a"), (Ids{1, 260, 262, 260}));
}

TEST(TokenizerFlagsTest, SplitSpecialTokensMakesThemText) {
  TempDir folder;
  WriteJson(folder, {{"split_special_tokens", true}});
  EXPECT_EQ(Encode(folder, "<s>"), (Ids{256, '<', 's', '>'}));
}

TEST(TokenizerFilesTest, AddedTokensBesideTokenizerModelAreOneIdEach) {
  TempDir folder;
  WriteModel(folder, {{"tokenizer_class", "LlamaTokenizer"}, {"eos_token", "<|im_end|>"}});
  folder.Write("added_tokens.json", R"({"<|im_end|>": 262, "<|im_start|>": 263})");
  EXPECT_EQ(Encode(folder, "<|im_start|>a<|im_start|>a<|im_end|>"), (Ids{1, 263, 261, 263, 261, 262}));
  const auto tokenizer = *Tokenizer::Load(folder.path());
  EXPECT_EQ(tokenizer->eos_id(), 262);
  EXPECT_EQ(tokenizer->Decode(Ids{263, 261, 262}), "<|im_start|> a") << "the end token is special, the other is not";
}

TEST(TokenizerFilesTest, AddedTokensDecoderReplacesTheOtherFiles) {
  TempDir folder;
  WriteModel(folder, {{"tokenizer_class", "LlamaTokenizer"},
                      {"added_tokens_decoder", {{"262", {{"content", "<x>"}, {"special", true}, {"rstrip", true}}}}}});
  folder.Write("added_tokens.json", R"({"<y>": 262})");
  EXPECT_EQ(Encode(folder, "<x>  a"), (Ids{1, 262, 261}));
  folder.Write("tokenizer_config.json", R"({"added_tokens_decoder": {"seven": {"content": "<x>"}}})");
  EXPECT_THAT(LoadError(folder), HasSubstr("\"seven\" is not a token id"));
  folder.Write("tokenizer_config.json", R"({"added_tokens_decoder": {"260": {"content": "<x>"}}})");
  EXPECT_THAT(LoadError(folder), HasSubstr("id 260 belongs to the piece \"a\""));
}

TEST(TokenizerFilesTest, EverySourceOfSpecialTokensCountsForVocabJson) {
  const TokenizerJson token = {{"content", "<pad>"}, {"special", true}};
  const TokenizerJson gpt2 = {{"tokenizer_class", "GPT2Tokenizer"}};
  const auto ids_with = [&](const TokenizerJson& fields, const char* name, const TokenizerJson& file) {
    TempDir folder;
    TokenizerJson config = gpt2;
    config.merge_patch(fields);
    WriteVocab(folder, config);
    if (*name != '\0') folder.Write(name, file.dump());
    return Encode(folder, "x<pad>");
  };
  const Ids want = {'x', 260};
  EXPECT_EQ(ids_with({{"pad_token", "<pad>"}}, "", {}), want);
  EXPECT_EQ(ids_with({{"pad_token", token}}, "", {}), want);
  EXPECT_EQ(ids_with({{"additional_special_tokens", {"<pad>"}}}, "", {}), want);
  EXPECT_EQ(ids_with({{"extra_special_tokens", {{"padding", "<pad>"}}}}, "", {}), want);
  EXPECT_EQ(ids_with({{"model_specific_special_tokens", {{"padding", "<pad>"}}}}, "", {}), want);
  EXPECT_EQ(ids_with({{"added_tokens_decoder", {{"260", token}}}}, "", {}), want);
  EXPECT_EQ(ids_with({}, "special_tokens_map.json", {{"pad_token", "<pad>"}}), want);
  EXPECT_EQ(ids_with({}, "added_tokens.json", {{"<pad>", 260}}), want);
}

TEST(TokenizerFilesTest, ASpecialTokenWithoutAPieceGetsTheNextId) {
  TempDir folder;
  WriteVocab(folder, {{"tokenizer_class", "GPT2Tokenizer"}, {"sep_token", "<new>"}, {"pad_token", "<pad>"}});
  EXPECT_EQ(Encode(folder, "<new><pad>"), (Ids{262, 260})) << "behind <|endoftext|>, which the class has";
  folder.Write("tokenizer_config.json", R"({"tokenizer_class": "OPTTokenizer", "sep_token": "<new>", "pad_token": "<pad>"})");
  EXPECT_EQ(Encode(folder, "<new><pad>"), (Ids{261, 260}));
}

TEST(TokenizerFilesTest, AClassHasSpecialTokensThatNoFileNames) {
  const auto load = [](const TokenizerJson& config, const char* model_type, const char* piece) {
    TempDir folder;
    WriteVocab(folder, config);
    TokenizerJson vocab = TokenizerJson::parse(folder.Read("vocab.json"));
    vocab[piece] = 261;
    folder.Write("vocab.json", vocab.dump());
    if (*model_type != '\0') folder.Write("config.json", TokenizerJson{{"model_type", model_type}}.dump());
    return *Tokenizer::Load(folder.path());
  };
  const TokenizerJson none = TokenizerJson::object();
  for (const auto& [config, model_type] : {std::pair(TokenizerJson{{"tokenizer_class", "GPT2Tokenizer"}}, ""),
                                           {none, ""},
                                           {none, "gpt2"},
                                           {none, "qwen3"},
                                           {TokenizerJson{{"tokenizer_class", "Qwen2TokenizerFast"}}, "llama"},
                                           {TokenizerJson{{"tokenizer_class", "PreTrainedTokenizerFast"}}, "qwen2"},
                                           {TokenizerJson{{"tokenizer_class", "CodeGenTokenizer"}}, ""},
                                           {none, "gpt_neox"}}) {
    const auto tokenizer = load(config, model_type, "<|endoftext|>");
    EXPECT_EQ(*tokenizer->Encode("x<|endoftext|>"), (Ids{'x', 261})) << config << model_type;
    EXPECT_EQ(tokenizer->eos_id(), 261);
    EXPECT_TRUE(tokenizer->IsSpecial(261));
    const bool qwen = tokenizer->bos_id() == std::nullopt;
    EXPECT_EQ(qwen, config.dump().find("Qwen") != std::string::npos || std::string_view(model_type).starts_with("qwen"));
  }
  const auto roberta = load({{"tokenizer_class", "RobertaTokenizer"}}, "", "<mask>");
  EXPECT_EQ(*roberta->Encode("x <mask>"), (Ids{256, 'x', 261, 257})) << "the mask takes the space before it";
  EXPECT_EQ(roberta->eos_id(), 257);
}

TEST(TokenizerFilesTest, ATokenThatAFileStatesOrDeniesIsNotThatOfTheClass) {
  TempDir folder;
  WriteVocab(folder, {{"tokenizer_class", "GPT2Tokenizer"}, {"eos_token", "</s>"}, {"bos_token", nullptr}, {"unk_token", nullptr}});
  EXPECT_EQ((*Tokenizer::Load(folder.path()))->eos_id(), 257);
  EXPECT_EQ((*Tokenizer::Load(folder.path()))->bos_id(), std::nullopt);
  EXPECT_EQ((*Tokenizer::Load(folder.path()))->vocab_size(), 261) << "nothing was added";
  folder.Write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
  folder.Write("special_tokens_map.json", R"({"eos_token": "</s>"})");
  EXPECT_EQ((*Tokenizer::Load(folder.path()))->eos_id(), 257);
  WriteJson(folder, {{"tokenizer_class", "Qwen2Tokenizer"}, {"unk_token", "<s>"}, {"pad_token", "<s>"}});
  folder.Write("special_tokens_map.json", "{}");
  EXPECT_EQ((*Tokenizer::Load(folder.path()))->eos_id(), (*Tokenizer::Load(folder.path()))->vocab_size() - 1)
      << "beside tokenizer.json, too: added where no piece has it";
}

TEST(TokenizerFilesTest, AModelWhoseTokenizerHasOtherFilesIsRefusedByName) {
  for (const char* name : {"", "PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend"}) {
    for (const char* model_type : {"llama", "mistral", "no_such_model"}) {
      TempDir folder;
      WriteVocab(folder, *name == '\0' ? TokenizerJson::object() : TokenizerJson{{"tokenizer_class", name}});
      folder.Write("config.json", TokenizerJson{{"model_type", model_type}}.dump());
      EXPECT_THAT(LoadError(folder), HasSubstr("config.json has model_type \"" + std::string(model_type) +
                                               "\", which uses other tokenizer "
                                               "files; download its tokenizer.json or tokenizer.model, or name the"));
      folder.Write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
      EXPECT_EQ(Encode(folder, "x"), (Ids{'x'}));
    }
  }
}

TEST(TokenizerFilesTest, Qwen2SplitsByItsOwnPatternAndComposes) {
  TempDir folder;
  WriteVocab(folder, {{"tokenizer_class", "Qwen2Tokenizer"}, {"added_tokens_decoder", {{"260", {{"content", "<pad>"}}}}}});
  folder.Write("merges.txt", "#version: 0.2\na b\nab c\n");
  EXPECT_EQ(Encode(folder, "e\u0301"), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(Encode(folder, "abc<pad>"), (Ids{259, 260}));
  folder.Write("tokenizer_config.json", "{}");
  folder.Write("config.json", R"({"model_type": "qwen3"})");
  EXPECT_EQ(Encode(folder, "e\u0301"), (Ids{0xC3, 0xA9})) << "config.json names the model where nothing names the class";
}

TEST(TokenizerFilesTest, PretokenizeRegexReplacesThePatternOfTheClass) {
  TempDir folder;
  WriteVocab(folder, {{"tokenizer_class", "Qwen2Tokenizer"}, {"pretokenize_regex", "."}});
  EXPECT_EQ(Encode(folder, "abc"), (Ids{'a', 'b', 'c'}));
}

TEST(TokenizerFilesTest, MergesTxtIsNamedAndMayOpenWithAByteOrderMark) {
  TempDir folder;
  WriteVocab(folder, {{"tokenizer_class", "GPT2Tokenizer"}});
  folder.Write("merges.txt", "\xEF\xBB\xBF#version: 0.2\na b\n");
  EXPECT_EQ(Encode(folder, "ab"), (Ids{258}));
  folder.Write("merges.txt", "#version: 0.2\na b c\n");
  EXPECT_THAT(LoadError(folder), HasSubstr("vocab.json with merges.txt: model: merge 1: it is neither"));
}

TEST(TokenizerFilesTest, ErrorsNameTheFileThatIsWrong) {
  TempDir folder;
  WriteJson(folder, TokenizerJson::array());
  EXPECT_EQ(LoadError(folder), folder.file("tokenizer_config.json") + ": is array, need an object: {\"name\": ...}");
  WriteJson(folder, TokenizerJson::object());
  folder.Write("added_tokens.json", R"({"<x>": -1})");
  EXPECT_EQ(LoadError(folder), folder.file("added_tokens.json") + ": the id of \"<x>\" is not a token id");
  folder.Write("special_tokens_map.json", R"({"pad_token": 7})");
  EXPECT_THAT(LoadError(folder), HasSubstr("special_tokens_map.json: field \"pad_token\" is number"));
}

TEST(TokenizerFilesTest, RobertaStandsBetweenItsEnds) {
  TempDir folder;
  WriteVocab(folder, {{"tokenizer_class", "RobertaTokenizer"}});
  EXPECT_EQ(Encode(folder, "x"), (Ids{256, 'x', 257}));
}

TEST(TokenizerFilesTest, AnUnknownClassOfVocabJsonIsRefusedByName) {
  TempDir folder;
  WriteVocab(folder, {{"tokenizer_class", "HerbertTokenizerFast"}});
  EXPECT_THAT(LoadError(folder),
              HasSubstr("tokenizer_class \"HerbertTokenizer\" of vocab.json with merges.txt is not supported; supported are GPT2"));
}

// As a hub's cache has them of a download that broke off. Taken for missing files, they leave
// another one in their place.
TEST(TokenizerFilesTest, ALinkToNothingIsNoMissingFile) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    TempDir folder;
    WriteModel(folder, {{"tokenizer_class", "LlamaTokenizer"}});
    std::filesystem::remove(folder.file(name));
    std::filesystem::create_symlink("../blobs/abc", folder.file(name));
    EXPECT_EQ(LoadError(folder), folder.file(name) + ": is a link to ../blobs/abc, which does not exist; download the file again");
  }
  for (const char* name : {"vocab.json", "merges.txt", "config.json"}) {
    TempDir folder;
    WriteVocab(folder, TokenizerJson::object());
    std::filesystem::remove(folder.file(name));
    std::filesystem::create_symlink(folder.file("nowhere"), folder.file(name));
    EXPECT_THAT(LoadError(folder), HasSubstr(std::string(name) + ": is a link to "));
  }
}

TEST(TokenizerFilesTest, AFolderOrAPipeInPlaceOfAFileIsNoMissingFile) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    TempDir folder;
    WriteModel(folder, {{"tokenizer_class", "LlamaTokenizer"}});
    std::filesystem::remove(folder.file(name));
    std::filesystem::create_directory(folder.file(name));
    EXPECT_EQ(LoadError(folder), folder.file(name) + ": is a folder, but must be a file of the model; download the model again");
    std::filesystem::remove(folder.file(name));
    ASSERT_EQ(::mkfifo(folder.file(name).c_str(), 0600), 0);
    EXPECT_EQ(LoadError(folder), folder.file(name) + ": is a pipe or a device, but must be a file of the model; download the model again");
  }
}

TEST(TokenizerFilesTest, OtherTokenizersAreNamed) {
  for (const char* name :
       {"tekken.json", "spiece.model", "tokenizer.model.v3", "vocab.txt", "qwen.tiktoken", "encoder.json", "sentencepiece.bpe.model"}) {
    TempDir folder;
    folder.Write(name, "{}");
    EXPECT_THAT(LoadError(folder), HasSubstr("vocab.json with merges.txt, but " + std::string(name) + ", which is ")) << name;
    EXPECT_THAT(LoadError(folder), HasSubstr("; download tokenizer.json"));
  }
  TempDir folder;
  EXPECT_EQ(LoadError(folder), folder.path() +
                                   ": holds no tokenizer.json, no tokenizer.model, and no vocab.json with merges.txt; download "
                                   "the whole folder of the model");
  folder.Write("merges.txt", "");
  EXPECT_THAT(LoadError(folder), HasSubstr(", but merges.txt, without its vocab.json; "));
  std::filesystem::rename(folder.file("merges.txt"), folder.file("vocab.json"));
  EXPECT_THAT(LoadError(folder), HasSubstr(", but vocab.json, without its merges.txt; "));
}

TEST(TokenizerFilesTest, WhatIsNoSentencePieceModelIsSaidToBeWhatItIs) {
  TempDir folder;
  WriteModel(folder, TokenizerJson::object());
  const std::string whole = folder.Read("tokenizer.model");
  const auto error_of = [&](const std::string& bytes) {
    folder.Write("tokenizer.model", bytes);
    return LoadError(folder);
  };
  const std::string name = folder.file("tokenizer.model");
  EXPECT_EQ(error_of(""), name + ": is empty; download it again");
  EXPECT_THAT(error_of("IQ== 0\nIg== 1\r\n"),
              HasSubstr(name + ": is a file of tiktoken, which LIME does not read; download tokenizer.json"));
  for (size_t bytes = 1; bytes < whole.size() - 1; bytes += 5) {
    const std::string error = error_of(whole.substr(0, bytes));
    if (error.empty()) continue;  // the cut is behind the last field that counts
    EXPECT_EQ(error, name + ": is truncated, or is not a SentencePiece model; download it again") << bytes;
  }
  EXPECT_THAT(error_of(whole.substr(0, whole.size() / 2)), HasSubstr("is truncated"));
}

TEST(TokenizerFilesTest, AFileThatMayNotBeReadIsSaidSo) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read every file";
  TempDir folder;
  WriteJson(folder, TokenizerJson::object());
  for (const char* name : {"tokenizer_config.json", "tokenizer.json"}) {
    std::filesystem::permissions(folder.file(name), std::filesystem::perms::none);
    EXPECT_EQ(LoadError(folder), folder.file(name) + ": cannot open: Permission denied");
  }
}

TEST(TokenizerFilesTest, BrokenFilesAreErrorsThatNameTheField) {
  const auto error = [](const TokenizerConfigFiles& files) { return std::string(ParseTokenizerConfig(files).status().message()); };
  EXPECT_THAT(error({.tokenizer_config = {{"pad_token", 7}}}), HasSubstr("field \"pad_token\" is number, need a token"));
  EXPECT_THAT(error({.tokenizer_config = {{"bos_token", {{"lstrip", true}}}}}), HasSubstr("field \"content\" is missing"));
  EXPECT_THAT(error({.tokenizer_config = {{"added_tokens_decoder", 1}}}), HasSubstr("\"added_tokens_decoder\" is not an object"));
  EXPECT_THAT(error({.tokenizer_config = {{"added_tokens_decoder", {{"99999999999", {{"content", "x"}}}}}}}),
              HasSubstr("is not a token id"));
  EXPECT_THAT(error({.tokenizer_config = {{"legacy", "no"}}}), HasSubstr("field \"legacy\" is string, need true or false"));
  EXPECT_THAT(error({.tokenizer_config = {}, .added_tokens = {{"<x>", -1}}}), HasSubstr("the id of \"<x>\" is not a token id"));
  EXPECT_THAT(error({.tokenizer_config = {}, .added_tokens = 3}), HasSubstr("added_tokens.json: is number, need an object"));
}

}  // namespace
}  // namespace lime
