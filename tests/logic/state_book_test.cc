#include "daemon/logic/state_book.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

Plan WithStates(int32_t snapshots = 2) {
  Plan plan{.sequences = 3, .state_snapshots = snapshots};
  plan.parts = {{.block = {BlockKind::kLinearAttention, 0}}};
  return plan;
}

// Rows [begin, end) of a slot; the last one is followed by a snapshot.
StepOrder Rows(int32_t sequence, int32_t begin, int32_t end, int32_t snapshot = -1) {
  MicroBatch batch;
  for (int32_t at = begin; at < end; ++at)
    batch.rows.push_back({.sequence = sequence, .position = at, .snapshot = at + 1 == end ? snapshot : -1});
  return {.microbatches = {batch}};
}

AdmitOrder Begins(int32_t sequence, int64_t computed = 0, int32_t snapshot = -1, int32_t source = -1) {
  return {.sequence = sequence, .prompt = {}, .computed = computed, .source = source, .snapshot = snapshot};
}

std::string Says(const absl::Status& status) {
  return std::string(status.message());
}

TEST(StateBookTest, ASequenceGoesOnFromASnapshotInItsSlot) {
  StateBook book(WithStates());
  ASSERT_TRUE(book.Begin(Begins(1)).ok());
  EXPECT_FALSE(book.NextRestore()) << "it begins with zeros";
  ASSERT_TRUE(book.Begin(Rows(1, 0, 32, 0)).ok() && book.Begin(Rows(1, 32, 48, 1)).ok() && book.Begin(Rows(1, 48, 50)).ok());
  book.Keep(1, 48);
  EXPECT_THAT(Says(book.Begin(Begins(1, 48))), HasSubstr("states of 48 positions, but snapshot -1 of slot 1 has 0")) << "they have 50";
  EXPECT_THAT(Says(book.Begin(Begins(1, 48, 0))), HasSubstr("snapshot 0 of slot 1 has 32"));
  EXPECT_THAT(Says(book.Begin(Begins(1, 0, 0))), HasSubstr("states of 0 positions"));
  EXPECT_FALSE(book.NextRestore()) << "of what was refused";
  ASSERT_TRUE(book.Begin(Begins(1, 32, 0)).ok());
  EXPECT_EQ(book.NextRestore(), (StateBook::Restore{.from = 1, .snapshot = 0, .to = 1, .positions = 32}));
  EXPECT_FALSE(book.NextRestore()) << "once";
  EXPECT_EQ(book.snapshot(1, 0), 32);
  EXPECT_EQ(book.snapshot(1, 1), 0) << "its KV is cut";
  EXPECT_TRUE(book.Begin(Rows(1, 32, 40)).ok());
}

TEST(StateBookTest, ASnapshotOfAnotherSlotIsCopiedAndStays) {
  StateBook book(WithStates());
  ASSERT_TRUE(book.Begin(Begins(0)).ok() && book.Begin(Rows(0, 0, 32, 1)).ok());
  EXPECT_THAT(Says(book.Begin(Begins(2, 32, -1, 0))), HasSubstr("snapshot -1 of slot 0")) << "the states of a running sequence are its own";
  ASSERT_TRUE(book.Begin(Begins(2, 32, 1, 0)).ok());
  EXPECT_EQ(book.NextRestore(), (StateBook::Restore{.from = 0, .snapshot = 1, .to = 2, .positions = 32}));
  EXPECT_EQ(book.snapshot(0, 1), 32);
  EXPECT_EQ(book.snapshot(2, 1), 0) << "it is no snapshot of slot 2";
  EXPECT_TRUE(book.Begin(Rows(2, 32, 33)).ok() && book.Begin(Rows(0, 32, 33)).ok());
}

TEST(StateBookTest, ARowThatDoesNotFollowItsStateIsRefused) {
  StateBook book(WithStates());
  ASSERT_TRUE(book.Begin(Begins(0)).ok() && book.Begin(Rows(0, 0, 10)).ok());
  EXPECT_EQ(Says(book.Begin(Rows(0, 11, 12))), "the states of slot 0 have 10 positions, the row is at 11");
  EXPECT_EQ(Says(book.Begin(Rows(0, 9, 10))), "the states of slot 0 have 10 positions, the row is at 9");
  EXPECT_TRUE(book.Begin(Rows(0, 0, 3)).ok()) << "position 0 begins anew";
  EXPECT_TRUE(book.Begin(Rows(0, 3, 4)).ok());
}

TEST(StateBookTest, WhatAFreedSlotHadIsGone) {
  StateBook book(WithStates());
  ASSERT_TRUE(book.Begin(Begins(0)).ok() && book.Begin(Rows(0, 0, 16, 0)).ok() && book.Begin(Rows(0, 16, 48, 1)).ok());
  book.Keep(0, 16);
  EXPECT_EQ(book.snapshot(0, 0), 16);
  EXPECT_EQ(book.snapshot(0, 1), 0);
  book.Keep(0, 0);
  EXPECT_EQ(book.snapshot(0, 0), 0);
  EXPECT_THAT(Says(book.Begin(Begins(1, 16, 0, 0))), HasSubstr("snapshot 0 of slot 0 has 0"));
  EXPECT_THAT(Says(book.Begin(Begins(1, 16, 7, 0))), HasSubstr("snapshot 7 of slot 0 has 0")) << "there is none";
}

TEST(StateBookTest, ASequenceGoesBackToASnapshotOfItsSlot) {
  StateBook book(WithStates());
  ASSERT_TRUE(book.Begin(Begins(1)).ok());
  ASSERT_TRUE(book.Begin(Rows(1, 0, 32, 0)).ok() && book.Begin(Rows(1, 32, 48, 1)).ok() && book.Begin(Rows(1, 48, 50)).ok());
  EXPECT_THAT(Says(book.RollBack({.sequence = 1, .positions = 48, .snapshot = 0})), HasSubstr("48 positions, but snapshot 0 of it has 32"));
  EXPECT_THAT(Says(book.RollBack({.sequence = 1, .positions = 48})), HasSubstr("snapshot -1 of it has 0"));
  EXPECT_THAT(Says(book.RollBack({.sequence = 0, .positions = 48, .snapshot = 1})), HasSubstr("snapshot 1 of it has 0"));
  EXPECT_FALSE(book.NextRestore()) << "of what was refused";
  ASSERT_TRUE(book.RollBack({.sequence = 1, .positions = 32, .snapshot = 0}).ok());
  EXPECT_EQ(book.NextRestore(), (StateBook::Restore{.from = 1, .snapshot = 0, .to = 1, .positions = 32}));
  EXPECT_EQ(book.snapshot(1, 0), 32) << "it may go back there again";
  EXPECT_EQ(book.snapshot(1, 1), 0);
  EXPECT_THAT(Says(book.Begin(Rows(1, 50, 51))), HasSubstr("have 32 positions, the row is at 50"));
  EXPECT_TRUE(book.Begin(Rows(1, 32, 40)).ok());
}

// Without states, a sequence may begin with any pages, and with a snapshot of whole ones.
TEST(StateBookTest, WindowsHaveSnapshotsOfWholePages) {
  Plan plan{.sequences = 2, .state_snapshots = 1};
  plan.parts = {{.block = {BlockKind::kAttention, 0}, .window = {.positions = 32, .pages = 8}}};
  StateBook book(plan);
  ASSERT_TRUE(book.Begin(Begins(0)).ok() && book.Begin(Rows(0, 0, 48, 0)).ok() && book.Begin(Rows(0, 48, 300)).ok());
  EXPECT_EQ(book.snapshot(0, 0), 48);
  EXPECT_THAT(Says(book.Begin(Rows(0, 300, 310, 0))), HasSubstr("to have 310 positions, not whole pages of 16"));
  EXPECT_TRUE(book.Begin(Begins(1, 272, -1, 0)).ok()) << "close behind the newest position";
  EXPECT_THAT(Says(book.Begin(Begins(1, 64, 0, 0))), HasSubstr("snapshot 0 of slot 0 has 48"));
  ASSERT_TRUE(book.Begin(Begins(1, 48, 0, 0)).ok());
  EXPECT_EQ(book.NextRestore(), (StateBook::Restore{.from = 0, .snapshot = 0, .to = 1, .positions = 48}));
  EXPECT_THAT(Says(book.RollBack({.sequence = 0, .positions = 48, .snapshot = 0})), HasSubstr("the model has no state"));
  ASSERT_TRUE(book.RollBack({.sequence = 0, .positions = 299}).ok());
  EXPECT_EQ(book.snapshot(0, 0), 48);
  ASSERT_TRUE(book.RollBack({.sequence = 0, .positions = 47}).ok());
  EXPECT_EQ(book.snapshot(0, 0), 0) << "of rows that are computed again";
  EXPECT_FALSE(book.NextRestore());
  ASSERT_TRUE(book.Begin(Rows(0, 47, 64, 0)).ok());
  book.Keep(0, 32);
  EXPECT_EQ(book.snapshot(0, 0), 0);
}

TEST(StateBookTest, AModelWithoutStatesHasNoSnapshots) {
  Plan plan{.sequences = 2};
  plan.parts = {{.block = {BlockKind::kAttention, 0}}};
  StateBook book(plan);
  EXPECT_TRUE(book.Begin(Begins(1, 32, -1, 0)).ok());
  EXPECT_TRUE(book.Begin(Rows(1, 32, 40)).ok());
  EXPECT_THAT(Says(book.Begin(Begins(1, 32, 0))), HasSubstr("the plan has none"));
  EXPECT_TRUE(book.RollBack({.sequence = 1, .positions = 7}).ok());
  EXPECT_THAT(Says(book.RollBack({.sequence = 1, .positions = 7, .snapshot = 0})), HasSubstr("the model has no state"));
  book.Keep(1, 16);
  EXPECT_FALSE(book.NextRestore());
}

}  // namespace
}  // namespace lime
