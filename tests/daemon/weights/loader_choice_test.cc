#include "daemon/weights/loader_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lime {
namespace {

using ::testing::HasSubstr;

TEST(LoaderChoiceTest, ColdFilesThatFitAreRead) {
  const LoaderChoice choice = ChooseLoader(LoaderKind::kAuto, {.weight_bytes = kGiB, .available_memory = 8 * kGiB, .cached = 0});
  EXPECT_EQ(choice.kind, LoaderKind::kRead);
  EXPECT_THAT(choice.reason, HasSubstr("0 % of the files are cached"));
}

TEST(LoaderChoiceTest, CachedFilesAreMapped) {
  const LoaderChoice choice = ChooseLoader(LoaderKind::kAuto, {.weight_bytes = kGiB, .available_memory = 8 * kGiB, .cached = 1});
  EXPECT_EQ(choice.kind, LoaderKind::kMmap);
  EXPECT_TRUE(choice.populate);
  EXPECT_THAT(choice.reason, HasSubstr("100 % of the files are cached"));
}

TEST(LoaderChoiceTest, CachedFilesAreCopiedForALongRun) {
  const LoaderFacts facts{.weight_bytes = kGiB, .available_memory = 8 * kGiB, .cached = 1, .passes = 100};
  const LoaderChoice choice = ChooseLoader(LoaderKind::kAuto, facts);
  EXPECT_EQ(choice.kind, LoaderKind::kRead);
  EXPECT_THAT(choice.reason, HasSubstr("100 planned steps make up for the copying"));
}

TEST(LoaderChoiceTest, FilesThatDoNotFitAreMappedAndNotPopulated) {
  const LoaderChoice choice = ChooseLoader(LoaderKind::kAuto, {.weight_bytes = 8 * kGiB, .available_memory = 8 * kGiB, .cached = 0});
  EXPECT_EQ(choice.kind, LoaderKind::kMmap);
  EXPECT_FALSE(choice.populate);
  EXPECT_THAT(choice.reason, HasSubstr("8.00 GiB of weights do not fit into the 8.00 GiB available"));
}

TEST(LoaderChoiceTest, AnExplicitChoiceIsObeyed) {
  for (const LoaderKind kind : {LoaderKind::kRead, LoaderKind::kMmap}) {
    for (const double cached : {0.0, 1.0}) {
      EXPECT_EQ(ChooseLoader(kind, {.weight_bytes = kGiB, .available_memory = 8 * kGiB, .cached = cached}).kind, kind);
    }
  }
}

}  // namespace
}  // namespace lime
