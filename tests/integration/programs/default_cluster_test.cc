// Which cluster.toml is used where a call names none.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/integration/programs/lime_process.h"
#include "tests/skips.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kModel = LIME_SOURCE_DIR "/models/lime-fables";

// In a folder of its own, with a home of its own; nobody listens at the addresses.
class DefaultClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(dir_ / "here");
    std::filesystem::create_directories(dir_ / "config/lime");
    std::filesystem::current_path(dir_ / "here");
    setenv("XDG_CONFIG_HOME", (dir_ / "config").c_str(), 1);
    setenv("XDG_STATE_HOME", (dir_ / "state").c_str(), 1);
  }
  void TearDown() override { std::filesystem::current_path("/"); }

  void Write(const std::string& path, const std::string& device) {
    dir_.Write(path, absl::StrCat("[[device]]\nname = \"", device, "\"\naddress = \"127.0.0.1:9\"\nlimed = \"/bin/false\"\n"));
  }

  static void ExpectAlso(const Answer& answer, const std::string& words) {
    EXPECT_EQ(answer.exit_code, 2);
    EXPECT_THAT(answer.err, HasSubstr(words));
    EXPECT_THAT(answer.err, Not(HasSubstr("/bin/false")));
  }

  TempDir dir_;
};

TEST_F(DefaultClusterTest, WithoutAnyFileBothPlacesAreNamed) {
  for (const std::string command : {"up", "down", "devices"}) {
    const Answer answer = Call({command});
    ExpectRefused(answer, 2, "there is no ./cluster.toml and no " + (dir_ / "config/lime/cluster.toml"));
    EXPECT_THAT(answer.err, HasSubstr("--cluster FILE"));
  }
  ExpectRefused(Call({"push", "--model", kModel}), 2, "there is no ./cluster.toml");
}

TEST_F(DefaultClusterTest, TheFileOfTheFolderGoesBeforeTheUsersAndIsNamed) {
  Write("config/lime/cluster.toml", "own");
  Answer answer = Call({"devices", "--json"});
  EXPECT_EQ(answer.Json()["devices"][0]["name"], "own") << answer.err;
  EXPECT_EQ(answer.Json()["cluster_file"], dir_ / "config/lime/cluster.toml");
  EXPECT_THAT(answer.err, HasSubstr("cluster file " + (dir_ / "config/lime/cluster.toml")));
  Write("here/cluster.toml", "here");
  answer = Call({"devices", "--json"});
  EXPECT_EQ(answer.Json()["devices"][0]["name"], "here") << answer.err;
  EXPECT_THAT(answer.err, HasSubstr("cluster file cluster.toml"));
  answer = Call({"devices", "--json", "--cluster", dir_ / "config/lime/cluster.toml"});
  EXPECT_EQ(answer.Json()["devices"][0]["name"], "own") << answer.err;
  EXPECT_THAT(answer.err, Not(HasSubstr("cluster file")));
}

TEST_F(DefaultClusterTest, AFileInTheFolderNeverMovesALocalRunElsewhere) {
  Write("here/cluster.toml", "here");
  const std::vector<std::string> run = {"run", "--model", kModel, "--prompt", "Once", "--max-tokens", "2"};
  const Answer local = Call(run);
  EXPECT_EQ(local.exit_code, 0) << local.err;
  EXPECT_THAT(local.err, Not(HasSubstr("cluster")));
  std::vector<std::string> elsewhere = run;
  elsewhere.insert(elsewhere.begin() + 1, "--cluster");
  const Answer cluster = Call(elsewhere);
  EXPECT_NE(cluster.exit_code, 0);
  EXPECT_THAT(cluster.err, HasSubstr("cluster file cluster.toml"));
  EXPECT_THAT(cluster.err, HasSubstr("device \"here\""));
  EXPECT_THAT(Call({"plan", "--model", kModel, "--cluster"}).err, HasSubstr("cluster file cluster.toml"));
  EXPECT_THAT(Call({"profile", "--cluster", "--json"}).err, HasSubstr("cluster file cluster.toml"));
}

TEST_F(DefaultClusterTest, AnOutputDoesNotReplaceTheFileThatTheFlagWithoutAValueFinds) {
  Write("here/cluster.toml", "here");
  const std::string before = dir_.Read("here/cluster.toml");
  for (const std::vector<std::string>& call : {std::vector<std::string>{"plan", "--model", kModel, "--out", "cluster.toml"},
                                               {"run", "--model", kModel, "--prompt", "Once", "--trace", "./cluster.toml"}}) {
    std::vector<std::string> words = call;
    words.insert(words.end(), {"--overwrite", "--cluster"});
    ExpectAlso(Call(words), "is also read by this command");
    EXPECT_EQ(dir_.Read("here/cluster.toml"), before);
  }
}

TEST_F(DefaultClusterTest, AFolderWithoutAModelIsAWrongCallBeforeAnyDeviceIsAsked) {
  Write("here/cluster.toml", "here");
  std::filesystem::create_directory("m");
  for (const std::vector<std::string>& call : {std::vector<std::string>{"push"},
                                               {"plan", "--cluster"},
                                               {"profile", "--cluster"},
                                               {"run", "--prompt", "x", "--cluster"},
                                               {"score", "--ids", "1,2", "--cluster"}}) {
    std::vector<std::string> words = call;
    words.insert(words.begin() + 1, {"--model", "m"});
    ExpectAlso(Call(words), "m holds no config.json; give the folder of a Hugging Face checkpoint");
  }
}

TEST_F(DefaultClusterTest, AnEmptyNameIsAWrongCall) {
  Write("here/cluster.toml", "here");
  const std::vector<std::vector<std::string>> calls = {{"devices", "--cluster", ""},
                                                       {"run", "--model", kModel, "--prompt", "x", "--cluster", ""}};
  for (const std::vector<std::string>& call : calls) {
    const Answer answer = Call(call);
    EXPECT_EQ(answer.exit_code, 2);
    EXPECT_THAT(answer.err, HasSubstr("--cluster"));
  }
}

TEST_F(DefaultClusterTest, UpStartsNothingThatAnotherUsersFileNames) {
  Write("here/cluster.toml", "here");
  ASSERT_EQ(chmod("cluster.toml", 0666), 0);
  ExpectAlso(Call({"up"}), "can be written by everyone");
  ASSERT_EQ(chmod("cluster.toml", 0644), 0);
  EXPECT_THAT(Call({"up"}).err, HasSubstr("/bin/false"));  // its own is used
  LIME_SKIP_WITHOUT(chown("cluster.toml", 65534, 65534) == 0, "the right to give files away");
  ExpectAlso(Call({"up"}), "cluster.toml belongs to nobody");
  EXPECT_THAT(Call({"up", "--cluster", "cluster.toml"}).err, HasSubstr("/bin/false"));  // who names it trusts it
}

TEST_F(DefaultClusterTest, UpReadsNoFileThatOthersCanPutThere) {
  Write("elsewhere.toml", "linked");
  std::filesystem::create_symlink(dir_ / "elsewhere.toml", "cluster.toml");
  EXPECT_THAT(Call({"up"}).err, HasSubstr("/bin/false"));  // its own link to its own file
  ASSERT_EQ(chmod(".", 0777), 0);
  ExpectAlso(Call({"up"}), "cluster.toml can be replaced by everyone");
  ASSERT_EQ(chmod(".", 01777), 0);  // as /tmp, where only owners may replace a file
  EXPECT_THAT(Call({"up"}).err, HasSubstr("/bin/false"));
  ASSERT_EQ(chmod(".", 0755), 0);
  LIME_SKIP_WITHOUT(lchown("cluster.toml", 65534, 65534) == 0, "the right to give files away");
  ExpectAlso(Call({"up"}), "cluster.toml is a link that belongs to nobody");
}

TEST_F(DefaultClusterTest, ALinkThatLeadsNowhereIsReportedAndNotPassedOver) {
  Write("config/lime/cluster.toml", "own");
  std::filesystem::create_symlink("gone.toml", "cluster.toml");
  ExpectRefused(Call({"devices"}), 2, "cluster.toml is a link to gone.toml, which does not exist");
}

TEST_F(DefaultClusterTest, OneAddressTwiceIsRefusedByEveryCommand) {
  Write("here/cluster.toml", "a");
  const std::string one = dir_.Read("here/cluster.toml");
  std::string other = one;
  dir_.Write("here/cluster.toml", one + other.replace(other.find("\"a\""), 3, "\"b\""));
  for (const std::vector<std::string>& call : {std::vector<std::string>{"plan", "--model", kModel}, {"devices"}, {"up"}}) {
    std::vector<std::string> words = call;
    words.insert(words.end(), {"--cluster", "cluster.toml"});
    ExpectRefused(Call(words), 2, "device \"b\" has the address 127.0.0.1:9 of device \"a\"");
  }
}

}  // namespace
}  // namespace lime
