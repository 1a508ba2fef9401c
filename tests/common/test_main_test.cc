// Entries of ctest that share a program: each runs the tests of its own files (tests/test_main.cc).
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace lime {
namespace {

struct Listing {
  int exit_code = -1;
  std::string output;  // of stdout and stderr
};

// What this program lists with more arguments. Shards belong to this process, not to that one.
Listing ListTests(const std::string& arguments) {
  const std::string command =
      "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX \"$(readlink /proc/$PPID/exe)\" --gtest_list_tests " + arguments;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {};
  Listing listing;
  char piece[4096];
  while (const size_t bytes = std::fread(piece, 1, sizeof piece, pipe)) listing.output.append(piece, bytes);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) listing.exit_code = WEXITSTATUS(status);
  return listing;
}

bool Lists(const Listing& listing, const std::string& suite) {
  return ("\n" + listing.output).find("\n" + suite + ".") != std::string::npos;
}

TEST(TestMainTest, AFileChoosesItsTestsAlone) {
  const Listing one = ListTests("--files=test_main_test.cc");
  EXPECT_EQ(one.exit_code, 0) << one.output;
  EXPECT_TRUE(Lists(one, "TestMainTest")) << one.output;
  EXPECT_FALSE(Lists(one, "SkipsTest")) << one.output;
  EXPECT_TRUE(Lists(ListTests(""), "SkipsTest"));
}

TEST(TestMainTest, SeveralFilesAreChosenTogether) {
  const Listing both = ListTests("--files=tests/common/test_main_test.cc,tests/common/skips_test.cc");
  EXPECT_TRUE(Lists(both, "TestMainTest") && Lists(both, "SkipsTest")) << both.output;
}

TEST(TestMainTest, AFileWithoutTestsIsAnError) {
  for (const std::string name : {"no_test.cc", "main_test.cc", "other/test_main_test.cc"}) {
    const Listing none = ListTests("--files=test_main_test.cc," + name);
    EXPECT_EQ(none.exit_code, 2) << none.output;
    EXPECT_NE(none.output.find("no test of " + name), std::string::npos) << none.output;
  }
}

TEST(TestMainTest, AFilterReplacesTheFiles) {
  const Listing filtered = ListTests("--files=test_main_test.cc --gtest_filter='SkipsTest.*'");
  EXPECT_TRUE(Lists(filtered, "SkipsTest")) << filtered.output;
  EXPECT_FALSE(Lists(filtered, "TestMainTest")) << filtered.output;
}

}  // namespace
}  // namespace lime
