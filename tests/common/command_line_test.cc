#include "common/input/command_line.h"

#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

// A program with flags of every kind.
class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest() {
    app_.set_version_flag("--version", "1");
    CLI::App* run = app_.add_subcommand("run");
    run->add_option("--model,-m", model_)->required();
    Flag(run->add_option("--prompt,-p", prompts_)).FreeText().Repeats();
    run->add_option("--max-tokens,-n", tokens_)->delimiter(',')->allow_extra_args(false);
    run->add_option("--seed", seed_);
    run->add_option("--memory", memory_);
    run->add_option("--temperature", temperature_);
    run->add_option("--cluster", cluster_)->expected(0, 1);
    run->add_option("--top", top_);
    run->add_flag("--json", json_);
    CLI::App* prepare = app_.add_subcommand("prepare");
    prepare->add_option("model,--model,-m", model_)->required();
    prepare->add_option("--out,-o", memory_);
  }

  // The sentence about the call, or "" where it passes.
  std::string Error(Words words) { return std::string(CheckWords(app_, words).message()); }

  CLI::App app_{"", "lime"};
  std::string model_, memory_, cluster_;
  std::vector<std::string> prompts_;
  std::vector<int64_t> tokens_;
  uint64_t seed_ = 0;
  std::optional<int64_t> top_;
  double temperature_ = 0;
  bool json_ = false;
};

TEST_F(CommandLineTest, UnknownCommandsAndFlagsAreNamedWithTheNearest) {
  EXPECT_EQ(Error({"runn", "--model", "m"}), "unknown command \"runn\"; did you mean lime run?");
  EXPECT_EQ(Error({"chat"}), "unknown command \"chat\"; `lime --help` lists the commands");
  EXPECT_EQ(Error({"run", "--max-token", "10"}), "run: unknown flag --max-token; did you mean --max-tokens?");
  EXPECT_EQ(Error({"run", "--max-token=10"}), "run: unknown flag --max-token; did you mean --max-tokens?");
  EXPECT_EQ(Error({"run", "--quick"}), "run: unknown flag --quick; `lime run --help` lists the flags");
  EXPECT_EQ(Error({"run", "-x"}), "run: unknown flag -x; `lime run --help` lists the flags");
  EXPECT_EQ(Error({"--modle", "m", "run"}), "unknown flag --modle; `lime --help` lists the flags");
}

TEST_F(CommandLineTest, OneDashInFrontOfALongNameIsNoValueOfAShortOne) {
  EXPECT_EQ(Error({"run", "-prompt", "x"}), "run: unknown flag -prompt; did you mean --prompt?");
  EXPECT_EQ(Error({"run", "-model=x"}), "run: unknown flag -model=x; did you mean --model=x?");
  EXPECT_THAT(Error({"run", "-n=5"}), HasSubstr("write -n 5 instead of -n=5"));
  EXPECT_EQ(Error({"run", "-n5", "-mfolder"}), "");
}

TEST_F(CommandLineTest, AFlagIsNoValueOfAnother) {
  EXPECT_EQ(Error({"run", "--memory", "--json"}), "run: --memory needs a value, but --json is a flag");
  EXPECT_EQ(Error({"run", "--memory"}), "run: --memory needs a value");
  EXPECT_THAT(Error({"run", "--memory=", "--json"}), HasSubstr("run: --memory= has no value"));
}

TEST_F(CommandLineTest, EmptyValuesAreWrongButForTexts) {
  EXPECT_EQ(Error({"run", "--memory", ""}), "run: --memory is empty; give a value, or leave it out");
  EXPECT_EQ(Error({"prepare", ""}), "prepare: model is empty; give a value, or leave it out");
  EXPECT_EQ(Error({"run", "--prompt", ""}), "");
}

TEST_F(CommandLineTest, APromptMayBeAnyText) {
  for (const char* text : {"--json", "--help", "-x", "-1", "--", "-", "a b", "=", "{}"})
    EXPECT_EQ(Error({"run", "--prompt", text}), "") << text;
}

TEST_F(CommandLineTest, WholeNumbersAreWrittenPlainlyAndFit) {
  EXPECT_EQ(Error({"run", "--seed", "-1"}), "run: --seed -1 is not a whole number of 0 or more");
  EXPECT_EQ(Error({"run", "-n", "99999999999999999999"}), "run: -n 99999999999999999999 does not fit in 64 bits; give a smaller number");
  EXPECT_EQ(Error({"run", "-n", "5", "-n", "6"}), "run: -n is given twice; give it once");
  EXPECT_EQ(Error({"run", "-n", "5,x"}), "run: -n x is not a whole number");
  EXPECT_EQ(Error({"run", "-n", "5,"}), "run: -n \"\" is not a whole number");
  EXPECT_EQ(Error({"run", "-n", "1e3"}), "run: -n 1e3 is not a whole number");
  EXPECT_EQ(Error({"run", "-n", "0x10"}), "run: -n 0x10 is not a whole number");
  EXPECT_EQ(Error({"run", "-n", "010"}), "run: -n 010: write the number without leading zeros");
  EXPECT_EQ(Error({"run", "--top", "many"}), "run: --top many is not a whole number");
  EXPECT_EQ(Error({"run", "--temperature", "warm"}), "run: --temperature warm is not a number");
  EXPECT_EQ(Error({"run", "-n", "0", "--seed", "18446744073709551615", "--temperature", "1e-6", "--top", "-5"}), "");
  EXPECT_EQ(Error({"run", "-n", "9223372036854775807"}), "");
}

TEST_F(CommandLineTest, AValueIsQuotedWhereItsEndsAreNotSeen) {
  EXPECT_EQ(Error({"run", "-n", "3,,"}), "run: -n \"\" is not a whole number");
  EXPECT_EQ(Error({"run", "-n", " 5"}), "run: -n \" 5\" is not a whole number");
  EXPECT_EQ(Error({"run", "--top", "５"}), "run: --top \"５\" is not a whole number");
  for (const char* wrong : {"nan", "inf", "0x10", " 5", "5 ", "1_000", "5s", "1e999"})
    EXPECT_THAT(Error({"run", "--temperature", wrong}), HasSubstr("is not a number")) << wrong;
}

TEST_F(CommandLineTest, AFlagWithoutAValueIsGivenNone) {
  EXPECT_EQ(Error({"run", "--json=no"}), "run: --json takes no value; leave =no out");
  EXPECT_EQ(Error({"run", "--json="}), "run: --json takes no value; leave = out");
}

TEST_F(CommandLineTest, ATextIsEmptyInBothForms) {
  Words words = {"run", "--prompt=", "--json", "--prompt", "--prompt=", "-p", ""};
  ASSERT_EQ(CheckWords(app_, words).message(), "");
  EXPECT_EQ(words, (Words{"run", "--prompt", "", "--json", "--prompt", "--prompt=", "-p", ""}));
}

TEST_F(CommandLineTest, AFlagGivenTwiceIsNamed) {
  EXPECT_EQ(Error({"run", "--memory", "1GiB", "--memory", "2GiB"}), "run: --memory is given twice; give it once");
  EXPECT_EQ(Error({"run", "-p", "a", "-p", "b"}), "");
}

TEST_F(CommandLineTest, AWordThatBelongsToNothingIsNoPrompt) {
  EXPECT_EQ(Error({"run", "--model", "m", "hello"}), "run: unexpected word \"hello\"; a prompt is given as --prompt \"TEXT\", in quotes");
  EXPECT_EQ(Error({"run", "/tmp"}), "run: unexpected folder /tmp; the model is given as --model /tmp");
  EXPECT_EQ(Error({"run", "--"}), "run: unexpected word \"--\"; a prompt is given as --prompt \"TEXT\", in quotes");
  EXPECT_EQ(Error({"prepare", "m", "n"}), "prepare: unexpected word \"n\"; `lime prepare --help` shows the arguments");
  EXPECT_EQ(Error({"prepare", "m", "--out", "s"}), "");
}

TEST_F(CommandLineTest, AValueThatMayBeLeftOutIs) {
  EXPECT_EQ(Error({"run", "--cluster"}), "");
  EXPECT_EQ(Error({"run", "--cluster", "--json"}), "");
  EXPECT_EQ(Error({"run", "--cluster", "c.toml", "--json"}), "");
}

TEST_F(CommandLineTest, HelpAnswersEverySlipButAnUnknownCommand) {
  EXPECT_EQ(Error({"run", "--nothing", "--help"}), "");
  EXPECT_EQ(Error({"run", "-h", "--nothing"}), "");
  EXPECT_EQ(Error({"runn", "--help"}), "unknown command \"runn\"; did you mean lime run?");
  EXPECT_EQ(WithHelpWords({"help"}), Words{"--help"});
  EXPECT_EQ(WithHelpWords({"help", "run"}), (Words{"run", "--help"}));
  EXPECT_EQ(WithHelpWords({"version"}), Words{"--version"});
  EXPECT_EQ(WithHelpWords({"run", "help"}), (Words{"run", "help"}));
}

TEST_F(CommandLineTest, WhatIsMissingIsSaidInTheNameOfTheCommand) {
  const auto sentence = [&](Words words) {
    std::ranges::reverse(words);
    try {
      app_.require_subcommand(1);
      app_.parse(std::move(words));
    } catch (const CLI::ParseError& error) {
      return SentenceOf(app_, error);
    }
    return std::string();
  };
  EXPECT_EQ(sentence({"run"}), "run: --model is required");
  EXPECT_EQ(sentence({}), "no command is given; `lime --help` lists the commands");
}

TEST_F(CommandLineTest, ControlCharactersOfAWordAreNotShown) {
  EXPECT_EQ(Error({"run\x1b[31m"}), "unknown command \"run?[31m\"; `lime --help` lists the commands");
}

}  // namespace
}  // namespace lime
