#include "common/input/flag_file.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FlagFileTest : public ::testing::Test {
 protected:
  FlagFileTest() {
    const CommandFlags flags(app_);
    flags.Add("--model,-m", &model_, "Folder");
    flags.Add("--name", &name_, "Name").Shown();
    flags.Add("--port", &port_, "Port").Shown();
    flags.Add("--wait", &wait_, "Seconds");
    flags.Add("--alias", &aliases_, "Further names").Repeats();
    flags.Add("--json", &json_, "JSON");
    flags.Add("--config", &config_, "File");
    flags.AddOptional(
        "--cluster", "default",
        [this](const std::string& value) {
          if (value.ends_with("bad")) return absl::InvalidArgumentError("it is bad");
          cluster_ = value;
          return absl::OkStatus();
        },
        "Cluster");
  }

  // Reads the text after the words of the call.
  absl::Status Read(std::string_view text, std::vector<std::string> words = {}) {
    std::reverse(words.begin(), words.end());
    app_.parse(std::move(words));
    constexpr PathField kPaths[] = {{"model"}, {"cluster", {"auto", "plain"}}};
    return ReadFlagText(CommandFlags(app_), text, "dir/f.toml", kPaths);
  }
  std::string Error(std::string_view text) { return std::string(Read(text).message()); }

  CLI::App app_{"", "lime"};
  std::string model_, name_ = "none", config_, cluster_;
  int port_ = 1;
  double wait_ = 2;
  std::vector<std::string> aliases_;
  bool json_ = false;
};

TEST_F(FlagFileTest, FieldsAreFlags) {
  ASSERT_TRUE(Read("model = \"m\"\nname = \"n\"\nport = 80\nwait = 0.5\nalias = [\"a\", \"b\"]\njson = true\ncluster = \"/c\"\n").ok());
  EXPECT_EQ(model_, "dir/m") << "relative to the file";
  EXPECT_EQ(cluster_, "/c");
  EXPECT_EQ(name_, "n");
  EXPECT_EQ(port_, 80);
  EXPECT_EQ(wait_, 0.5);
  EXPECT_THAT(aliases_, ElementsAre("a", "b"));
  EXPECT_TRUE(json_);
  EXPECT_TRUE(CommandFlags(app_).Given("--json"));
}

TEST_F(FlagFileTest, AWordInPlaceOfAPathIsNoPath) {
  const std::pair<const char*, const char*> cases[] = {
      {"auto", "auto"}, {"plain", "plain"}, {"./plain", "dir/./plain"}, {"t.jinja", "dir/t.jinja"}};
  for (const auto& [value, read] : cases) {
    ASSERT_TRUE(Read(absl::StrCat("cluster = \"", value, "\"\n")).ok());
    EXPECT_EQ(cluster_, read);
  }
}

TEST_F(FlagFileTest, ACallOverridesTheFile) {
  ASSERT_TRUE(Read("name = \"file\"\nport = 80\nalias = \"file\"\n", {"--name", "call", "--alias", "call"}).ok());
  EXPECT_EQ(name_, "call");
  EXPECT_EQ(port_, 80);
  EXPECT_THAT(aliases_, ElementsAre("call"));
}

TEST_F(FlagFileTest, FalseAndEmptyListsAreNotGiven) {
  ASSERT_TRUE(Read("json = false\nalias = []\n").ok());
  EXPECT_FALSE(json_);
  EXPECT_THAT(aliases_, IsEmpty());
  EXPECT_FALSE(CommandFlags(app_).Given("--json"));
}

TEST_F(FlagFileTest, MistakesAreNamedWithTheirLine) {
  EXPECT_THAT(Error("name = \"n\"\nprot = 80\n"), HasSubstr("dir/f.toml line 2: field \"prot\" is unknown; did you mean port?"));
  EXPECT_THAT(Error("config = \"x\"\n"), HasSubstr("field \"config\" is unknown"));
  EXPECT_THAT(Error("help = true\n"), HasSubstr("field \"help\" is unknown"));
  EXPECT_THAT(Error("port = \"80\"\n"), HasSubstr("line 1: field \"port\" is not a number"));
  EXPECT_THAT(Error("port = 1.5\n"), HasSubstr("not a whole number"));
  EXPECT_THAT(Error("port = true\n"), HasSubstr("is not a number"));
  EXPECT_THAT(Error("name = true\n"), HasSubstr("is not a text in quotes"));
  EXPECT_THAT(Error("name = [\"a\"]\n"), HasSubstr("is not a text in quotes"));
  EXPECT_THAT(Error("alias = [\"a\", true]\n"), HasSubstr("or a list of such values"));
  EXPECT_THAT(Error("json = 1\n"), HasSubstr("is not true or false"));
  EXPECT_THAT(Error("name = \"\"\n"), HasSubstr("is empty"));
  EXPECT_THAT(Error("cluster = \"bad\"\n"), HasSubstr("dir/f.toml line 1"));
  EXPECT_THAT(Error("[name]\nx = 1\n"), HasSubstr("field \"name\" is not"));
  EXPECT_THAT(Error("name = \n"), HasSubstr("is not valid TOML"));
}

}  // namespace
}  // namespace lime
