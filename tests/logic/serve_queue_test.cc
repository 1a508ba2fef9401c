#include "coordinator/logic/serve_queue.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const absl::Time kArrival = absl::UnixEpoch();

std::vector<std::string> Show(const std::vector<ServeQueue::Ending>& due) {
  std::vector<std::string> lines;
  lines.reserve(due.size());
  for (const ServeQueue::Ending& ending : due)
    lines.push_back(absl::StrCat(ending.request, " ", absl::StatusCodeToString(ending.why.code())));
  return lines;
}

TEST(ServeQueueTest, AcceptsAsManyAsHaveSlotsAndMayWait) {
  ServeQueue queue({.most_waiting = 1}, 2);
  for (const RequestId request : {0, 1, 2}) EXPECT_TRUE(queue.Arrive(request, kArrival).ok()) << request;
  queue.Start(0), queue.Start(1);
  const absl::Status full = queue.Arrive(3, kArrival);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("1 requests wait and 2 run"));
  queue.End(0);
  EXPECT_TRUE(queue.Arrive(3, kArrival).ok());
  EXPECT_EQ(queue.waiting(), 2);
  EXPECT_EQ(queue.running(), 1);
}

TEST(ServeQueueTest, WithoutAQueueARequestNeedsAFreeSlot) {
  ServeQueue queue({.most_waiting = 0}, 1);
  EXPECT_TRUE(queue.Arrive(0, kArrival).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(queue.Arrive(1, kArrival)));
}

TEST(ServeQueueTest, RequestsThatComeTogetherAreAcceptedOrRefusedTogether) {
  ServeQueue queue({.most_waiting = 2}, 1);
  EXPECT_TRUE(queue.Arrive(0, kArrival).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(queue.Arrive(1, kArrival, 3)));
  EXPECT_EQ(queue.waiting(), 1);
  EXPECT_TRUE(queue.Arrive(1, kArrival, 2).ok());
  EXPECT_EQ(queue.waiting(), 3);
}

TEST(ServeQueueTest, AGroupLongerThanTheQueueHasItAlone) {
  ServeQueue queue({.most_waiting = 2, .most_together = 10}, 1);
  EXPECT_TRUE(queue.Arrive(0, kArrival).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(queue.Arrive(1, kArrival, 10))) << "request 0 waits";
  queue.Start(0);
  EXPECT_TRUE(absl::IsResourceExhausted(queue.Arrive(1, kArrival, 11)));
  EXPECT_TRUE(queue.Arrive(1, kArrival, 10).ok());
  EXPECT_EQ(queue.waiting(), 10);
  for (RequestId request = 0; request < 8; ++request) {
    EXPECT_TRUE(absl::IsResourceExhausted(queue.Arrive(11, kArrival))) << request;
    queue.End(request);
    queue.Start(request + 1);
  }
  queue.End(8);
  EXPECT_TRUE(queue.Arrive(11, kArrival).ok()) << "two of the group and this one are three";
}

TEST(ServeQueueTest, AGroupThatFitsWaitsForRoomAsARequestDoes) {
  ServeQueue queue({.most_waiting = 0, .most_together = 10}, 2);
  EXPECT_TRUE(queue.Arrive(0, kArrival).ok());
  queue.Start(0);
  EXPECT_TRUE(absl::IsResourceExhausted(queue.Arrive(1, kArrival, 2)));
  EXPECT_TRUE(queue.Arrive(1, kArrival).ok());
  queue.Start(1);
  EXPECT_TRUE(absl::IsResourceExhausted(queue.Arrive(2, kArrival)));
}

TEST(ServeQueueTest, TheRestOfAGroupWaitsForTheGroupAlone) {
  ServeQueue queue({.most_wait = absl::Seconds(10)}, 1);
  EXPECT_TRUE(queue.Arrive(0, kArrival, 2).ok());
  EXPECT_TRUE(queue.Arrive(2, kArrival, 2).ok());
  queue.Start(0);
  EXPECT_EQ(queue.NextDue(), kArrival + absl::Seconds(10));
  EXPECT_THAT(Show(queue.Due(kArrival + absl::Seconds(10))), ElementsAre("2 DEADLINE_EXCEEDED", "3 DEADLINE_EXCEEDED"));
  queue.End(2), queue.End(3);
  EXPECT_EQ(queue.NextDue(), absl::InfiniteFuture());
  queue.Drain();
  EXPECT_THAT(queue.Due(kArrival + absl::Hours(1)), IsEmpty());
  queue.End(0);
  queue.Start(1);
  EXPECT_EQ(queue.running(), 1);
  EXPECT_FALSE(queue.drained());
  queue.End(1);
  EXPECT_TRUE(queue.drained());
}

TEST(ServeQueueTest, AnotherPlanHasOtherSlots) {
  ServeQueue queue({.most_waiting = 0}, 2);
  EXPECT_TRUE(queue.Arrive(0, kArrival).ok() && queue.Arrive(1, kArrival).ok());
  queue.set_slots(1);
  queue.End(0);
  EXPECT_FALSE(queue.Arrive(2, kArrival).ok());
  queue.set_slots(2);
  EXPECT_TRUE(queue.Arrive(2, kArrival).ok());
}

TEST(ServeQueueTest, ARequestThatWaitsTooLongIsReportedOnce) {
  ServeQueue queue({.most_wait = absl::Seconds(10)}, 1);
  EXPECT_EQ(queue.NextDue(), absl::InfiniteFuture());
  EXPECT_TRUE(queue.Arrive(0, kArrival).ok());
  EXPECT_TRUE(queue.Arrive(1, kArrival + absl::Seconds(3)).ok());
  queue.Start(0);
  EXPECT_EQ(queue.NextDue(), kArrival + absl::Seconds(13));
  EXPECT_THAT(queue.Due(kArrival + absl::Seconds(12)), IsEmpty());
  EXPECT_THAT(Show(queue.Due(kArrival + absl::Seconds(13))), ElementsAre("1 DEADLINE_EXCEEDED"));
  EXPECT_THAT(queue.Due(kArrival + absl::Hours(1)), IsEmpty());
  EXPECT_EQ(queue.NextDue(), absl::InfiniteFuture());
}

TEST(ServeQueueTest, ACancelledRequestIsReportedOnceWhereverItIs) {
  ServeQueue queue({}, 1);
  EXPECT_TRUE(queue.Arrive(0, kArrival).ok() && queue.Arrive(1, kArrival).ok());
  queue.Start(0);
  queue.Cancel(0), queue.Cancel(1), queue.Cancel(1), queue.Cancel(77);
  EXPECT_THAT(Show(queue.Due(kArrival)), ElementsAre("0 CANCELLED", "1 CANCELLED"));
  EXPECT_THAT(queue.Due(kArrival), IsEmpty());
  queue.End(0), queue.End(1);
  queue.Cancel(0);
  EXPECT_THAT(queue.Due(kArrival), IsEmpty());
}

TEST(ServeQueueTest, ADrainEndsWhoWaitsAndIsOverWithTheLastThatRuns) {
  ServeQueue queue({}, 1);
  EXPECT_TRUE(queue.Arrive(0, kArrival).ok() && queue.Arrive(1, kArrival).ok());
  queue.Start(0);
  EXPECT_FALSE(queue.drained());
  queue.Drain();
  EXPECT_TRUE(absl::IsUnavailable(queue.Arrive(2, kArrival)));
  EXPECT_THAT(Show(queue.Due(kArrival)), ElementsAre("1 UNAVAILABLE"));
  queue.End(1);
  EXPECT_FALSE(queue.drained());
  queue.End(0);
  EXPECT_TRUE(queue.drained());
}

TEST(ServeQueueTest, OnceClosedItRefusesWithTheReason) {
  ServeQueue queue({}, 1);
  queue.Close(absl::DataLossError("the disk is broken"));
  queue.Drain();
  EXPECT_TRUE(absl::IsDataLoss(queue.Arrive(0, kArrival)));
}

}  // namespace
}  // namespace lime
