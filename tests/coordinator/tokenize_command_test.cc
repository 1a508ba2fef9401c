#include "coordinator/text/tokenize_command.h"

#include <gmock/gmock.h>

#include <sstream>

#include "tests/coordinator/small_tokenizers.h"

namespace lime {
namespace {

using testing::HasSubstr;

class TokenizeCommandTest : public testing::Test {
 protected:
  // The output, or the error's sentence.
  std::string Run(const std::string& input, const TokenizeOptions& options) {
    std::istringstream in(input);
    std::ostringstream out;
    const absl::Status status = RunTokenize(*tokenizer_, in, out, options);
    return status.ok() ? out.str() : std::string(status.message());
  }

  std::unique_ptr<Tokenizer> tokenizer_ = ByteLevelTokenizer();
};

TEST_F(TokenizeCommandTest, TextBecomesIds) {
  EXPECT_EQ(Run("ab", {}), "256 258\n");
  EXPECT_EQ(Run("ab", {.json = true}), "{\"ids\":[256,258]}\n");
  EXPECT_EQ(Run("", {}), "256\n");
}

TEST_F(TokenizeCommandTest, NoSpecialAddsNothingAndRecognisesNothing) {
  EXPECT_EQ(Run("ab", {.no_special = true}), "258\n");
  EXPECT_EQ(Run("<s>", {.no_special = true}), "60 115 62\n");
  EXPECT_EQ(Run("<s>", {}), "256 256\n");
}

TEST_F(TokenizeCommandTest, IdsBecomeText) {
  EXPECT_EQ(Run("256 258, 258\n", {.decode = true}), "abab");
  EXPECT_EQ(Run("[256,258]", {.decode = true, .json = true}), "{\"text\":\"ab\"}\n");
  EXPECT_EQ(Run("256 258", {.decode = true, .no_special = true}), "<s>ab");
}

TEST_F(TokenizeCommandTest, BadIdsAreNamed) {
  EXPECT_THAT(Run("1 two 3", {.decode = true}), HasSubstr("\"two\" is not a token id"));
  EXPECT_THAT(Run("99999", {.decode = true}), HasSubstr("id 99999 is outside the vocabulary"));
  EXPECT_THAT(Run("-1", {.decode = true}), HasSubstr("id -1 is outside"));
  EXPECT_THAT(Run("99999999999999999999", {.decode = true}), HasSubstr("is not a token id"));
  EXPECT_THAT(Run(R"({"ids":[18446744073709551615]})", {.jsonl = true}), HasSubstr("id 18446744073709551615 is outside the vocabulary"));
}

TEST_F(TokenizeCommandTest, JsonlAnswersLineByLine) {
  EXPECT_EQ(Run("{\"text\":\"ab\"}\n\n{\"ids\":[258,256]}\n", {.jsonl = true}), "{\"ids\":[256,258]}\n{\"text\":\"ab\"}\n");
}

TEST_F(TokenizeCommandTest, AMalformedLineIsNamed) {
  for (const char* bad : {"{\"text\":1}", "{}", "[]", "{\"text\":\"a\",\"ids\":[]}", "{\"ids\":[\"a\"]}", "{\"ids\":[-1]}",
                          "{\"ids\":[18446744073709551615]}", "{\"ids\":[1.5]}", "not json", "\"text\""}) {
    EXPECT_THAT(Run(std::string("{\"text\":\"a\"}\n") + bad + "\n", {.jsonl = true}), HasSubstr("line 2: ")) << bad;
  }
}

TEST_F(TokenizeCommandTest, BrokenUtf8OnStdinIsDefined) {
  EXPECT_EQ(Run("a\xFFz", {.no_special = true}), "97 239 191 189 122\n");
}

}  // namespace
}  // namespace lime
