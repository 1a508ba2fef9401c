// OrderWriter: snapshots of states, for later requests and for failures.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/logic/cached_device.h"

namespace lime {
namespace {

using ::testing::ElementsAre;

TEST(OrderWriterStatesTest, TheNextTurnGoesOnFromTheLastSnapshotOfTheAnswer) {
  OrderWriter writer(SharingStates());
  CachedDevice device(writer, 3);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 30), 40)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:64")) << "69 of 70 positions are computed";
  EXPECT_EQ(device.taken(), 4) << "at 16, near the end of the prompt, and at 32, 48 and 64";
  const std::vector<int32_t> all = JoinIds(GroupIds(100, 30), Answer(GroupIds(100, 30), 40));
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(all, GroupIds(0, 10)), 3)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=1 from -1:64", "keep 0:80"));
}

// As after a template that leaves out what the model thought.
TEST(OrderWriterStatesTest, AnAnswerThatIsWrittenDifferentlyGoesOnFromTheSnapshotOfThePrompt) {
  OrderWriter writer(SharingStates());
  CachedDevice device(writer, 3);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 100), 60)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:144"));
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 94), GroupIds(0, 40)), 3)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=1 from -1:80", "keep 0:128")) << "80: the last unit that leaves 8 ids of the prompt";
}

// The newest snapshot may have taken ids that come after the end.
TEST(OrderWriterStatesTest, AnEndThatNobodyKnewLeavesTheSnapshotBefore) {
  OrderWriter::Options options = SharingStates();
  options.look_ahead = 4;
  OrderWriter writer(options);
  CachedDevice device(writer, 3);
  const std::vector<int32_t> answer = Answer(GroupIds(100, 30), 40);
  for (size_t last = 14; last < 22; ++last) {
    const int32_t end = answer[last];
    if (std::find(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(last), end) !=
        answer.begin() + static_cast<std::ptrdiff_t>(last))
      continue;
    Request request = AskOfGroup(GroupIds(100, 30), 40);
    request.end_tokens = {end}, request.cache_group = static_cast<int64_t>(last);
    ASSERT_TRUE(writer.Add(std::move(request)).ok());
    device.RunAll();
    const auto known = static_cast<int64_t>(30 + last + 1);
    EXPECT_EQ(std::ssize(writer.cache().idle().back().ids), known / 16 * 16) << "ends at " << last;
  }
}

TEST(OrderWriterStatesTest, ChoicesShareThePromptUpToASnapshot) {
  OrderWriter writer(SharingStates(4));
  CachedDevice device(writer, 3);
  for (int choice = 0; choice < 4; ++choice) ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 100), 5)).ok());
  device.RunAll();
  EXPECT_EQ(device.shared(), 3 * 96) << "the snapshot behind the prompt's own: these prompts are the same to the end";
}

TEST(OrderWriterStatesTest, WithoutSnapshotsNoStateIsShared) {
  OrderWriter::Options options = SharingStates(2, 0);
  OrderWriter writer(options);
  CachedDevice device(writer, 0);
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60), 20)).ok());
    device.RunAll();
    EXPECT_THAT(device.Said(), ElementsAre(absl::StrCat("0=", turn), "free 0"));
  }
}

TEST(OrderWriterStatesTest, WithinALongPromptSnapshotsAreTakenForAFailure) {
  OrderWriter::Options options = SharingStates(1);
  options.context = 5000, options.rows_ahead = 96;
  OrderWriter writer(options);
  CachedDevice device(writer, 3);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(0, 4000))).ok());
  for (int step = 0; step < 70; ++step) {
    device.Order();
    device.EndStep();
  }
  device.Order();
  const auto continued = writer.GoOnInterrupted(options);
  ASSERT_TRUE(continued.ok()) << continued.status();
  ASSERT_EQ(continued->size(), 1u);
  EXPECT_EQ(continued->front().sequence.positions, 2048) << "of 2,240";
  device.Change(*continued);
  const int64_t before = device.rows();
  device.RunAll();
  EXPECT_EQ(device.rows() - before, 4000 - 2048);
}

}  // namespace
}  // namespace lime
