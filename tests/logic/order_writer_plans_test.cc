// OrderWriter: KV and states that go on under another plan, or after a failure.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/logic/cached_device.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(OrderWriterPlansTest, ARestartDropsIdleSlots) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60))).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Restart(Sharing()).ok());
  EXPECT_TRUE(writer.cache().empty());
  device.Change({});
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60))).ok());
  device.RunAll();
  EXPECT_EQ(device.shared(), 0);
}

TEST(OrderWriterPlansTest, APlanThatTakesKvOverKeepsIdleSlotsAsFarAsItHasSlotsAndPages) {
  const auto kept = [](const OrderWriter::Options& next, int64_t most_pages = 1000) {
    OrderWriter writer(Sharing(4));
    CachedDevice device(writer);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(1000 * i, 60))).ok());
      device.RunAll();
    }
    EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(5000, 20), 100)).ok());
    device.Order();
    while (writer.steps_under_way() > 0) device.EndStep();
    const auto continued = writer.GoOn(next, most_pages);
    EXPECT_TRUE(continued.ok()) << continued.status();
    device.Change(*continued);
    std::vector<std::string> all;
    for (const OrderWriter::Continued& each : *continued)
      all.push_back(
          absl::StrCat(each.request.value_or(-1), ": ", each.sequence.from, " to ", each.sequence.to, ", ", each.sequence.positions));
    // The newest one is used in its new slot.
    EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 60))).ok());
    (void)device.Said();
    device.RunAll();
    return all;
  };
  EXPECT_THAT(kept(Sharing(4)), ElementsAre("2: 2 to 0, 21", "-1: 1 to 1, 48", "-1: 0 to 2, 48"));
  EXPECT_THAT(kept(Sharing(2)), ElementsAre("2: 2 to 0, 21", "-1: 1 to 1, 48"));
  EXPECT_THAT(kept(Sharing(4), 7), ElementsAre("2: 2 to 0, 21", "-1: 1 to 1, 48")) << "2 and 3 of 7 pages";
  OrderWriter::Options few = Sharing(4);
  few.levels = {{.layer_pages = 5}, {.layer_pages = 100}};
  EXPECT_THAT(kept(few), ElementsAre("2: 2 to 0, 21", "-1: 1 to 1, 48"));
  OrderWriter::Options pieces = Sharing(4);
  pieces.cache.unit = 256, pieces.copies_kv = false;
  EXPECT_THAT(kept(pieces), ElementsAre("2: 2 to 0, 21"));
}

TEST(OrderWriterPlansTest, StatesAndSnapshotsGoOnUnderAPlanThatTakesThemOver) {
  const auto continued = [](const OrderWriter::Options& next, size_t* taken_over = nullptr) {
    OrderWriter writer(SharingStates(4));
    CachedDevice device(writer, 3);
    EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 60))).ok());
    device.RunAll();
    EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(5000, 20), 100)).ok());
    device.Order();
    while (writer.steps_under_way() > 0) device.EndStep();
    const auto goes_on = writer.GoOn(next);
    EXPECT_TRUE(goes_on.ok()) << goes_on.status();
    device.Change(*goes_on);
    std::vector<std::vector<int64_t>> states;
    for (const OrderWriter::Continued& each : *goes_on) states.push_back(each.sequence.states);
    EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 60))).ok());
    EXPECT_TRUE(writer.Add(AskOfGroup(GroupIds(5000, 30))).ok());
    (void)device.Said();
    device.RunAll();
    if (taken_over != nullptr) *taken_over = static_cast<size_t>(device.shared());
    return states;
  };
  size_t shared = 0;
  EXPECT_THAT(continued(SharingStates(4), &shared), ElementsAre(ElementsAre(21, 0, 0, 16), ElementsAre(0, 48)));
  EXPECT_EQ(shared, 21 + 48 + 16) << "the running request, the idle slot, and a snapshot of the running one";
  EXPECT_THAT(continued(SharingStates(4, 1)), ElementsAre(ElementsAre(21), ElementsAre(0, 48)));
  EXPECT_THAT(continued(SharingStates(4, 0)), ElementsAre(ElementsAre(21))) << "an idle slot without snapshots is of no use";
}

// Steps are under way: a device has computed their rows, and their tokens have not come.
TEST(OrderWriterPlansTest, AfterAFailureARequestContinuesBehindWhatEveryDeviceHas) {
  for (const bool has_state : {false, true}) {
    const OrderWriter::Options options = has_state ? SharingStates(2) : Sharing();
    OrderWriter writer(options);
    CachedDevice device(writer, has_state ? std::optional(3) : std::nullopt);
    ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 20), 100)).ok());
    ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(2000, 390))).ok());
    for (int step = 0; step < 30; ++step) {
      device.Order();
      device.EndStep();
    }
    device.Order();
    ASSERT_EQ(writer.steps_under_way(), 2);
    ASSERT_EQ(writer.generated(0).size(), 30u);
    const auto continued = writer.GoOnInterrupted(options);
    ASSERT_TRUE(continued.ok()) << continued.status();
    ASSERT_EQ(continued->size(), 1u) << "the other request has ended, and its slot has nothing";
    const KvSequence& sequence = continued->front().sequence;
    EXPECT_EQ(sequence.positions, has_state ? 48 : 49) << "of 50 known ids; devices have computed some of the 2 rows behind them";
    EXPECT_EQ(sequence.states, has_state ? std::vector<int64_t>({0, 0, 32, 48}) : std::vector<int64_t>());
    device.Change(*continued);
    (void)device.Said();
    device.RunAll();
    EXPECT_THAT(device.Said(), ElementsAre(absl::StrCat("0=0 from -1:", sequence.positions), "keep 0:112"));
  }
}

TEST(OrderWriterPlansTest, OfARequestThatNoStepHasComputedADeviceMayKnowNothing) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 60))).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 70), 20)).ok());
  device.Order();
  EXPECT_EQ(device.shared(), 48) << "its order is on its way";
  const auto continued = writer.GoOnInterrupted(Sharing());
  ASSERT_TRUE(continued.ok()) << continued.status();
  EXPECT_THAT(*continued, IsEmpty());
}

// The logits of all generated tokens are computed again, for their hash; of a scored prompt, all.
TEST(OrderWriterPlansTest, AfterAFailureLogitsThatWereAskedForAreComputedAgain) {
  for (const auto& [logits, positions] : {std::pair(OrderWriter::Logits::kAgain, 39), std::pair(OrderWriter::Logits::kAll, 0)}) {
    OrderWriter writer(Sharing());
    CachedDevice device(writer);
    ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 40), 50), logits).ok());
    for (int step = 0; step < 50; ++step) {
      device.Order();
      device.EndStep();
    }
    const auto continued = writer.GoOnInterrupted(Sharing());
    ASSERT_TRUE(continued.ok()) << continued.status();
    EXPECT_EQ(continued->empty() ? 0 : continued->front().sequence.positions, positions);
  }
}

}  // namespace
}  // namespace lime
