#include "daemon/logic/kv_book.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

// Two sequences of one layer; pages for two pieces and a little.
Plan TwoSequences() {
  Plan plan{.context = 1024, .sequences = 2, .batch = 2, .page_bytes = 64, .prefill_chunk = 64, .chunks_per_sweep = 1};
  plan.devices.resize(1);
  plan.devices[0].kv_pages = 40;
  return plan;
}

StepOrder Step(int32_t sequence, int32_t position) {
  return {.microbatches = {{.rows = {{.sequence = sequence, .position = position}}}}};
}

// A sequence computes as far as that, without pieces that leave.
void Grow(KvBook& book, int32_t sequence, int32_t positions) {
  const absl::StatusOr<bool> extended = book.Extend(Step(sequence, positions - 1));
  ASSERT_TRUE(extended.ok() && *extended) << extended.status();
  book.Computed(Step(sequence, positions - 1).microbatches[0]);
}

TEST(KvBookTest, AStepWaitsUntilAPieceIsWrittenAndGetsItsPages) {
  const Plan plan = TwoSequences();
  KvBook book(plan, {.layers = 1, .leaves = true});
  book.SetReach(512);
  Grow(book, 0, 512);
  EXPECT_EQ(book.Extend(Step(1, 255)).value(), false);
  const std::optional<KvAway::Piece> piece = book.NextWrite();
  ASSERT_TRUE(piece);
  EXPECT_EQ(book.NextWrite(), std::nullopt) << "one at a time";
  EXPECT_EQ(book.Extend(Step(1, 255)).value(), false) << "while it is written";
  book.Written(*piece, absl::OkStatus());
  EXPECT_EQ(book.Extend(Step(1, 255)).value(), true);
  EXPECT_EQ(book.most_away(), 256);
  EXPECT_EQ(book.pages().Pages(0, 0)[0], -1);
}

TEST(KvBookTest, AChangedSequenceIsShownOnce) {
  const Plan plan = TwoSequences();
  KvBook book(plan, {.layers = 1});
  Grow(book, 0, 16);
  Grow(book, 0, 32);
  EXPECT_EQ(book.NextShown(), 0);
  EXPECT_EQ(book.NextShown(), std::nullopt);
  Grow(book, 0, 20);
  EXPECT_EQ(book.NextShown(), std::nullopt) << "it lacked no page";
  book.Release(0);
  const std::optional<KvBook::Ended> ended = book.NextEnded();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->life + 1, book.away().life(0));
  EXPECT_FALSE(book.NextEnded());
}

TEST(KvBookTest, AWriteThatFailsIsTheErrorOfWhoNeedsItsPages) {
  const Plan plan = TwoSequences();
  KvBook book(plan, {.layers = 1, .leaves = true});
  book.SetReach(512);
  Grow(book, 0, 512);
  book.Written(*book.NextWrite(), absl::ResourceExhaustedError("the disk is full"));
  EXPECT_EQ(book.NextWrite(), std::nullopt);
  EXPECT_EQ(book.Extend(Step(1, 255)).status().message(), "the disk is full");
}

TEST(KvBookTest, AWriteThatFailsForASequenceThatHasEndedIsNoError) {
  const Plan plan = TwoSequences();
  KvBook book(plan, {.layers = 1, .leaves = true});
  book.SetReach(512);
  Grow(book, 0, 512);
  const KvAway::Piece piece = *book.NextWrite();
  book.Release(0);
  book.Written(piece, absl::CancelledError("its sequence has ended"));
  Grow(book, 1, 512);
  EXPECT_TRUE(book.NextWrite());
}

TEST(KvBookTest, AHostReceivesNothingBeforeAStepWasOrdered) {
  const Plan plan = TwoSequences();
  KvBook book(plan, {.layers = 1, .leaves = true, .after_a_step = true});
  book.SetReach(512);
  ASSERT_TRUE(book.TakeOver({{.from = 1, .to = 0, .positions = 300}}, {0}).ok());
  EXPECT_EQ(book.NextWrite(), std::nullopt);
  Grow(book, 0, 301);
  EXPECT_TRUE(book.NextWrite());
}

}  // namespace
}  // namespace lime
