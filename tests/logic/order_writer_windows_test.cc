// OrderWriter: KV that requests share where layers have a window.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/logic/cached_device.h"

namespace lime {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;

// A layer with a window of 20 positions: 8 pages of a sequence.
OrderWriter::Options SharingWithWindow(int32_t sequences = 2, int32_t snapshots = 0) {
  OrderWriter::Options options = Sharing(sequences);
  options.snapshots = snapshots;
  options.window = {.positions = 20, .pages = WindowPages(20, 32)};
  EXPECT_EQ(options.window.pages, 8);
  return options;
}

TEST(OrderWriterWindowsTest, OfASlotThatHasGivenPagesBackOnlyTheEndIsShared) {
  OrderWriter writer(SharingWithWindow());
  CachedDevice device(writer);
  device.window = SharingWithWindow().window;
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 200), 20)).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(JoinIds(GroupIds(100, 200), Answer(GroupIds(100, 200), 20)), GroupIds(0, 10)), 3)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:208", "0=1 from -1:208", "keep 0:224")) << "the next turn has all of it";
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 100), GroupIds(0, 10)), 3)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("1=2", "keep 1:112")) << "96 positions are equal, but a layer has lost theirs";
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 100), GroupIds(50, 10)), 3)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("1=3 from -1:96", "keep 1:112")) << "of a short sequence nothing is lost";
}

TEST(OrderWriterWindowsTest, APromptIsSharedBehindTheWindowOfItsRequestIfItHasASnapshot) {
  OrderWriter writer(SharingWithWindow(3, 1));
  CachedDevice device(writer);
  device.window = SharingWithWindow().window, device.window_snapshots = 1;
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 200), 150)).ok());
  for (int step = 0; step < 100; ++step) {
    device.Order();
    ASSERT_NO_FATAL_FAILURE(device.EndStep());
  }
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 198), GroupIds(0, 10)), 3)).ok());
  device.Order();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "1=1 from 0:192")) << "the first request is far behind its prompt";
  device.RunAll();
  EXPECT_EQ(device.begun_at_snapshots(), 1);
  EXPECT_EQ(device.taken(), 1) << "none in answers";
  (void)device.Said();
  // The next turn of the chat, whose template writes the answer in another way.
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 195), GroupIds(300, 50)), 3)).ok());
  device.RunAll();
  EXPECT_EQ(device.Said().front().substr(4), "from -1:192");
}

// Of a long beginning that prompts have in common, the second one takes a snapshot for the third.
TEST(OrderWriterWindowsTest, WherePromptsPartTheNextOnesBegin) {
  OrderWriter writer(SharingWithWindow(3, 2));
  CachedDevice device(writer);
  device.window = SharingWithWindow().window, device.window_snapshots = 2;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 150), GroupIds(400 + 100 * i, 180)), 5)).ok());
    device.RunAll();
  }
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:320", "1=1", "keep 1:320", "2=2 from 1:144", "keep 2:320", "free 0",
                                         "0=3 from 1:144", "keep 0:320"));
  EXPECT_EQ(device.begun_at_snapshots(), 2);
}

// The next plan has memory of its own for them, and maybe for fewer.
TEST(OrderWriterWindowsTest, SnapshotsOfWindowsEndWithTheirPlan) {
  for (const bool interrupted : {false, true}) {
    OrderWriter writer(SharingWithWindow(3, 2));
    CachedDevice device(writer);
    device.window = SharingWithWindow().window, device.window_snapshots = 2;
    ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 250), GroupIds(600, 60)), 5)).ok());
    device.RunAll();
    EXPECT_EQ(device.taken(), 1) << "at 288";
    ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 210), GroupIds(0, 40)), 5)).ok());
    for (int step = 0; step < 2; ++step) {
      device.Order();
      ASSERT_NO_FATAL_FAILURE(device.EndStep());
    }
    while (!interrupted && writer.steps_under_way() > 0) ASSERT_NO_FATAL_FAILURE(device.EndStep());
    const OrderWriter::Options next = SharingWithWindow(3, 1);
    const auto continued = interrupted ? writer.GoOnInterrupted(next) : writer.GoOn(next);
    ASSERT_TRUE(continued.ok()) << continued.status();
    ASSERT_EQ(continued->size(), interrupted ? 1u : 2u);
    for (const OrderWriter::Continued& each : *continued) EXPECT_THAT(each.sequence.states, IsEmpty());
    ASSERT_NO_FATAL_FAILURE(device.Change(*continued));
    device.window_snapshots = 1, (void)device.Said();
    device.RunAll();
    EXPECT_EQ(device.Said().front().substr(0, 11), "0=1 from -1") << "in its prompt, before the place where it parts from the other";
    EXPECT_EQ(device.taken(), 2);
    ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(JoinIds(GroupIds(100, 250), GroupIds(600, 45)), GroupIds(0, 9)), 3)).ok());
    device.RunAll();
    EXPECT_THAT(device.Said(), Contains(EndsWith(":208"))) << "not 288";
  }
}

TEST(OrderWriterWindowsTest, ARequestThatAwaitsAPromptBeginsBeforeItsWindowHasPassed) {
  OrderWriter::Options options = SharingWithWindow(3);
  options.microbatches = options.chunks = 8;  // a step has more rows than the window's pages have room for
  OrderWriter writer(options);
  CachedDevice device(writer);
  device.window = options.window;
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 350), 5)).ok());
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 70), GroupIds(0, 10)), 5)).ok());
  device.RunAll();
  const std::vector<std::string> said = device.Said();
  ASSERT_GE(said.size(), 2u);
  EXPECT_EQ(said[0], "0=0");
  EXPECT_EQ(said[1], "1=1 from 0:64");
}

TEST(OrderWriterWindowsTest, ANextPlanTakesOverWhatTheWindowStillSees) {
  OrderWriter writer(SharingWithWindow());
  CachedDevice device(writer);
  device.window = SharingWithWindow().window;
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 90))).ok());
  device.RunAll();
  const auto continued = writer.GoOn(SharingWithWindow());
  ASSERT_TRUE(continued.ok()) << continued.status();
  device.Change(*continued);
  (void)device.Said();
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 70), GroupIds(0, 10)))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("1=1", "keep 1:80")) << "the pages before the window were not read";
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 90), GroupIds(0, 10)))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=2 from -1:80", "keep 0:96"));
}

}  // namespace
}  // namespace lime
