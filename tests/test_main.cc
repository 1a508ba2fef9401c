// main of all GoogleTest programs.
//
//   PROGRAM [--files=one_test.cc,two_test.cc] [--update_golden] [--gtest_...]
//
// --files: only the tests of these files run; without it, those of all files do. A name may have
// folders before it, as many as tell it from others. A --gtest_filter replaces it, as in the copies of
// itself that a death test starts.
// Entries of ctest that share a program (lime_test in cmake/LimeTargets.cmake) run their files so.
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/golden_file.h"

namespace {

constexpr std::string_view kFilesFlag = "--files=";

std::vector<std::string> SplitAtCommas(std::string_view names) {
  std::vector<std::string> parts;
  while (!names.empty()) {
    const size_t end = names.find(',');
    parts.emplace_back(names.substr(0, end));
    names.remove_prefix(end == names.npos ? names.size() : end + 1);
  }
  return parts;
}

// Whether `path` ends with the whole names of `file`.
bool Names(std::string_view file, std::string_view path) {
  if (!path.ends_with(file)) return false;
  return path.size() == file.size() || path[path.size() - file.size() - 1] == '/';
}

// All tests of the program. TestInfo::file is where a test is written, also for one with parameters.
std::vector<const testing::TestInfo*> AllTests() {
  std::vector<const testing::TestInfo*> tests;
  const testing::UnitTest& unit = *testing::UnitTest::GetInstance();
  for (int s = 0; s < unit.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *unit.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) tests.push_back(suite.GetTestInfo(t));
  }
  return tests;
}

// A file of another name belongs to no entry of ctest: its tests would never run.
bool AllAreInTestFiles() {
  for (const testing::TestInfo* test : AllTests()) {
    if (std::string_view(test->file()).ends_with("_test.cc")) continue;
    std::cerr << test->file() << " has tests; name it *_test.cc, so that an entry of ctest runs them\n";
    return false;
  }
  return true;
}

// GoogleTest's filter for the tests of `file`, each with a colon behind it; empty if there are none.
std::string FilterFor(std::string_view file) {
  std::string filter;
  for (const testing::TestInfo* test : AllTests()) {
    if (Names(file, test->file())) filter.append(test->test_suite_name()).append(".").append(test->name()).append(":");
  }
  return filter;
}

// Lets only the tests of `files` run. Returns false where one of them has no test, and says so.
bool Choose(const std::vector<std::string>& files) {
  std::string filter;
  for (const std::string& file : files) {
    const std::string part = FilterFor(file);
    if (part.empty()) {
      std::cerr << "--files: this program has no test of " << file << "; --gtest_list_tests lists its tests\n";
      return false;
    }
    filter += part;
  }
  GTEST_FLAG_SET(filter, filter);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--update_golden") lime::update_golden = true;
    if (argument.starts_with(kFilesFlag)) files = SplitAtCommas(argument.substr(kFilesFlag.size()));
  }
  if (!AllAreInTestFiles()) return 2;
  if (!files.empty() && GTEST_FLAG_GET(filter) == "*" && !Choose(files)) return 2;
  return RUN_ALL_TESTS();
}
