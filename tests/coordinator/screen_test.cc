#include "coordinator/reports/screen.h"

#include "coordinator/reports/progress.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime::cli {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

TEST(ScreenTest, ALineIsCutToTheTerminalsWidthAndNotWithinACharacter) {
  EXPECT_EQ(CutToColumns("Loading [####]", 7), "Loading");
  EXPECT_EQ(CutToColumns("Loading", 7), "Loading");
  EXPECT_EQ(CutToColumns("Loading", 80), "Loading");
  EXPECT_EQ(CutToColumns("Bär 地図 x", 6), "Bär 地図");
  EXPECT_EQ(CutToColumns("Bär", 2), "Bä");
  EXPECT_EQ(CutToColumns("", 5), "");
}

TEST(ScreenTest, WithoutAWidthNothingIsCut) {
  EXPECT_EQ(CutToColumns("Loading [####]", 0), "Loading [####]");
}

TEST(ScreenTest, ASentenceBeginsALineOfItsOwn) {
  EXPECT_EQ(SentenceLine("device \"anna\" is lost", /*in_mid_line=*/false), "lime: device \"anna\" is lost\n");
  EXPECT_EQ(SentenceLine("device \"anna\" is lost", /*in_mid_line=*/true), "\nlime: device \"anna\" is lost\n");
}

TEST(ProgressTest, TheBarFollowsTheShareAndTheRestOfTheTimeItsPace) {
  EXPECT_EQ(ProgressText("Loading", 0.25, "25 %", 4), "Loading [#####...............] 25 %, 12 s left");
  EXPECT_EQ(ProgressText("Loading", 1, "100 %", 4), "Loading [####################] 100 %, 0 s left");
  EXPECT_THAT(ProgressText("Loading", 0, "0 %", 4), EndsWith("] 0 %")) << "nobody knows how long it will take";
  EXPECT_THAT(ProgressText("Loading", 1.5, "more than all", 4), StartsWith("Loading [####################]"));
}

TEST(ProgressTest, ElapsedTimeStandsBesideWhatIsDoneAndWhatWasExpected) {
  EXPECT_EQ(ElapsedText("Planning", "looks for stages", 3.2, 0), "Planning: looks for stages, 3 s");
  EXPECT_EQ(ElapsedText("Prompt", "", 3.2, 12), "Prompt: 3 s of about 12 s");
  EXPECT_EQ(ElapsedText("Prompt", "2 of 5 parts", 3.2, 12), "Prompt: 2 of 5 parts, 3 s of about 12 s");
}

}  // namespace
}  // namespace lime::cli
