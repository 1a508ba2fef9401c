// Skips tests that need something that this machine lacks, in one wording. After all tests, ctest
// prints the number of skipped tests (tests/skips.py).
//
//   LIME_SKIP_WITHOUT_SHARED(SharedDir() / "models");
//   LIME_SKIP_WITHOUT(::geteuid() == 0, "root");
//
// A test that does not apply to its parameter, or to this build, uses GTEST_SKIP itself.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace lime {

// The folder beside the project with other people's data: models, tokenizers, texts.
inline const std::filesystem::path& SharedDir() {
  static const std::filesystem::path path(LIME_SHARED_DIR);
  return path;
}

// The name of a path below SharedDir() for users.
inline std::string SharedName(const std::filesystem::path& path) {
  return ("../shared" / path.lexically_relative(SharedDir())).string();
}

// Notes that the running test is skipped, for the count after all tests. Returns the reason to
// print.
inline std::string SkippedForWantOf(const std::string& what) {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  if (const char* notes = std::getenv("LIME_SKIPPED_TESTS")) {
    const std::string line = std::string(test.test_suite_name()) + "." + test.name() + "\t" + what + "\n";
    std::ofstream(notes, std::ios::app) << line;
  }
  return "for want of " + what;
}

}  // namespace lime

// `what` is a noun: the missing right, program, device or instruction set.
#define LIME_SKIP_WITHOUT(there, what) \
  if (!(there)) GTEST_SKIP() << ::lime::SkippedForWantOf(what)

#define LIME_SKIP_WITHOUT_SHARED(path) LIME_SKIP_WITHOUT(std::filesystem::exists(path), ::lime::SharedName(path))
