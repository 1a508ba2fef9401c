#include "coordinator/cluster/remote_command.h"

#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

// What a shell makes of the word.
std::string ThroughShell(const std::string& word) {
  FILE* const pipe = popen(("printf %s " + ShellWord(word)).c_str(), "r");
  std::string text;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) text += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0) << word;
  return text;
}

TEST(RemoteCommandTest, AWordIsAWordWhateverIsInIt) {
  for (const std::string word : {"plain", "", "two words", "it's", "'", "''", "$HOME", "$(touch /tmp/x)", "`id`", "a;b", "a&b|c>d", "\\",
                                 "\"", "*", "-rf", "~", "line\nbreak", "!x", "\xc3\xa9"}) {
    EXPECT_EQ(ThroughShell(word), word);
  }
}

TEST(RemoteCommandTest, ATargetIsOneHostAndNoOption) {
  for (const char* target : {"orin", "me@orin", "me@192.168.1.10", "root@[fe80::1%eth0]", "a-b.example"})
    EXPECT_TRUE(IsSshTarget(target)) << target;
  for (const char* target :
       {"", "-oProxyCommand=id", "@host", "me@", "me@-x", "two words", "a;b", "a$b", "me@host me", "me@a@b", "a\nb", "a'b"})
    EXPECT_FALSE(IsSshTarget(target)) << target;
  EXPECT_FALSE(IsSshTarget(std::string(300, 'a')));
}

TEST(RemoteCommandTest, TheOtherShellSeesTheSameWords) {
  const std::vector<std::string> words = OverSsh({.target = "me@orin"}, {"/opt/my lime/limed", "--name", "a'b"});
  ASSERT_GE(words.size(), 3u);
  EXPECT_EQ(words.front(), "ssh");
  EXPECT_EQ(words[words.size() - 3], "--");
  EXPECT_EQ(words[words.size() - 2], "me@orin");
  EXPECT_EQ(words.back(), "'/opt/my lime/limed' '--name' 'a'\\''b'");
}

TEST(RemoteCommandTest, AWayHasAPortAKeyAndAConfigurationAndNothingElse) {
  const auto way = ParseSshWay("-F a/ssh_config me@orin -p 2222 -i keys/id");
  ASSERT_TRUE(way.ok()) << way.status();
  EXPECT_EQ(way->target, "me@orin");
  const std::vector<std::string> words = OverSsh(*way, {"limed"});
  EXPECT_THAT(std::vector<std::string>(words.begin(), words.begin() + 7),
              ::testing::ElementsAre("ssh", "-F", "a/ssh_config", "-p", "2222", "-i", "keys/id"));
  EXPECT_EQ(ParseSshWay("orin")->port, "");
  for (const char* text : {"", "-p 22", "me@orin -p", "me@orin -p 0", "me@orin -p 65536", "me@orin -p 22x", "me@orin -p 22 -p 23",
                           "me@orin -i -oProxyCommand=id", "me@orin -oProxyCommand=id", "me@orin -o ProxyCommand=id", "me@orin other",
                           "me@orin -J jump", "-oProxyCommand=id", "me@orin -i"})
    EXPECT_FALSE(ParseSshWay(text).ok()) << text;
}

}  // namespace
}  // namespace lime
