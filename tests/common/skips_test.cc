// Tests that are skipped for want of something are noted where ctest asks for it.
#include "tests/skips.h"

#include "tests/temp_dir.h"

namespace lime {
namespace {

// Sets the variable for as long as it lives.
class Notes {
 public:
  explicit Notes(const char* file) {
    if (const char* before = std::getenv(kName)) before_ = before;
    file != nullptr ? ::setenv(kName, file, 1) : ::unsetenv(kName);
  }
  ~Notes() { before_.empty() ? ::unsetenv(kName) : ::setenv(kName, before_.c_str(), 1); }

 private:
  static constexpr const char* kName = "LIME_SKIPPED_TESTS";
  std::string before_;
};

TEST(SkipsTest, ASkipIsNotedWithTheNameOfTheTest) {
  const TempDir dir;
  const Notes notes(dir.file("notes").c_str());
  EXPECT_EQ(SkippedForWantOf("root"), "for want of root");
  EXPECT_EQ(SkippedForWantOf(SharedName(SharedDir() / "models/x")), "for want of ../shared/models/x");
  const std::string name = "SkipsTest.ASkipIsNotedWithTheNameOfTheTest";
  EXPECT_EQ(dir.Read("notes"), name + "\troot\n" + name + "\t../shared/models/x\n");
}

TEST(SkipsTest, ATestRunByHandIsSkippedAllTheSame) {
  const Notes notes(nullptr);
  EXPECT_EQ(SkippedForWantOf("root"), "for want of root");
}

TEST(SkipsTest, WhatIsThereSkipsNothing) {
  bool reached = false;
  const TempDir dir;
  const Notes notes(dir.file("notes").c_str());
  [&] {
    LIME_SKIP_WITHOUT(true, "air");
    reached = true;
  }();
  EXPECT_TRUE(reached);
  EXPECT_FALSE(std::filesystem::exists(dir.file("notes")));
}

}  // namespace
}  // namespace lime
