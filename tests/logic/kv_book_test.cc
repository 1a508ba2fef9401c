#include "daemon/logic/kv_book.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

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

// ---- Sequences that go back

TEST(KvBookTest, ASequenceThatGoesBackKeepsItsPages) {
  const Plan plan = TwoSequences();
  KvBook book(plan, {.layers = 1});
  Grow(book, 0, 100);
  const std::vector<int32_t> pages(book.pages().Pages(0, 0).begin(), book.pages().Pages(0, 0).end());
  (void)book.NextShown();
  EXPECT_THAT(std::string(book.RollBack({.sequence = 0, .positions = 113}).message()), HasSubstr("113 positions, but it has fewer pages"));
  ASSERT_TRUE(book.RollBack({.sequence = 0, .positions = 37}).ok());
  EXPECT_THAT(book.pages().Pages(0, 0), ElementsAreArray(pages));
  EXPECT_FALSE(book.NextShown());
  EXPECT_EQ(book.Extend(Step(0, 37)).value(), true);
}

TEST(KvBookTest, BehindAWindowASequenceCannotGoBack) {
  Plan plan = TwoSequences();
  const KvWindow window{.positions = 50, .pages = WindowPages(50, 64)};
  plan.parts = {{.block = {BlockKind::kAttention, 0}, .window = window}};
  KvBook book(plan, {.layers = 1});
  for (int32_t position = 0; position < 400; position += 50) book.Reach(Step(0, position));
  Grow(book, 0, 351);
  const int64_t least = window.LeastSharedAt(351);
  ASSERT_GT(least, 100);
  EXPECT_THAT(std::string(book.RollBack({.sequence = 0, .positions = least - 1}).message()),
              HasSubstr(absl::StrCat("can go back to no fewer than ", least)));
  EXPECT_TRUE(book.RollBack({.sequence = 0, .positions = least}).ok());
}

// ---- KV that sequences share

AdmitOrder Admit(int32_t sequence, int64_t positions, int64_t computed = 0, int32_t source = -1) {
  return {.sequence = sequence, .positions = positions, .prompt = {}, .computed = computed, .source = source};
}

std::string Says(const absl::Status& status) {
  return std::string(status.message());
}

TEST(KvBookTest, AnIdleSlotKeepsPagesAndASequenceContinuesWithThem) {
  const Plan plan = TwoSequences();
  KvBook book(plan, {.layers = 1});
  ASSERT_TRUE(book.Begin(Admit(0, 320)).ok() && book.Reserve(Admit(0, 320)).ok());
  const std::vector<int32_t> pages(book.pages().Pages(0, 0).begin(), book.pages().Pages(0, 0).end());
  ASSERT_TRUE(book.Keep(0, 160).ok());
  EXPECT_EQ(book.kept(0), 160);
  EXPECT_EQ(book.pages().free_pages(), 30);
  EXPECT_EQ(book.NextShown(), 0);
  EXPECT_FALSE(book.NextEnded()) << "its KV is still there";
  EXPECT_THAT(Says(book.Begin(Admit(0, 320))), HasSubstr("it has 160"));
  EXPECT_THAT(Says(book.Begin(Admit(0, 320, 176))), HasSubstr("continue with KV of 176 positions, but it has 160"));
  EXPECT_THAT(Says(book.Begin(Admit(0, 320, 100))), HasSubstr("not in pages or pieces"));
  ASSERT_TRUE(book.Begin(Admit(0, 200, 96)).ok());
  EXPECT_EQ(book.kept(0), 0);
  EXPECT_EQ(book.pages().free_pages(), 34);
  ASSERT_TRUE(book.Reserve(Admit(0, 200, 96)).ok());
  EXPECT_THAT(book.pages().Pages(0, 0).first(6), ElementsAreArray(pages.begin(), pages.begin() + 6));
  EXPECT_EQ(book.pages().Pages(0, 0).size(), 13u);
  EXPECT_FALSE(book.NextCopy());
  ASSERT_TRUE(book.Keep(0, 16).ok());
  book.Release(0);
  EXPECT_EQ(book.kept(0), 0);
  EXPECT_EQ(book.pages().free_pages(), 40);
}

TEST(KvBookTest, ASlotKeepsNoMoreThanItHas) {
  const Plan plan = TwoSequences();
  KvBook book(plan, {.layers = 1});
  EXPECT_THAT(Says(book.Keep(0, 16)), HasSubstr("it has fewer pages"));
}

TEST(KvBookTest, PagesOfAnotherSlotAreCopied) {
  const Plan plan = TwoSequences();
  KvBook book(plan, {.layers = 1});
  ASSERT_TRUE(book.Begin(Admit(0, 320)).ok() && book.Reserve(Admit(0, 320)).ok());
  EXPECT_THAT(Says(book.Begin(Admit(1, 200, 336, 0))), HasSubstr("of slot 0, which cannot be copied")) << "it has fewer";
  EXPECT_THAT(Says(book.Begin(Admit(1, 200, 90, 0))), HasSubstr("cannot be copied")) << "not whole pages";
  EXPECT_THAT(Says(book.Begin(Admit(1, 200, 96, 1))), HasSubstr("cannot be copied")) << "its own";
  EXPECT_FALSE(book.HasRoomFor(Admit(1, 400, 336, 0)));
  EXPECT_TRUE(book.HasRoomFor(Admit(1, 200, 96, 0)));
  ASSERT_TRUE(book.Begin(Admit(1, 200, 96, 0)).ok());
  EXPECT_THAT(Says(book.Begin(Admit(1, 200, 96, 0))), HasSubstr("still in use"));
  const std::optional<KvBook::PageCopy> copy = book.NextCopy();
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->from, 0);
  EXPECT_EQ(copy->to, 1);
  EXPECT_EQ(copy->pages, 6);
  EXPECT_FALSE(book.NextCopy()) << "once";
  EXPECT_EQ(book.pages().Pages(1, 0).size(), 6u);
  ASSERT_TRUE(book.Reserve(Admit(1, 200, 96, 0)).ok());
  EXPECT_EQ(book.pages().Pages(1, 0).size(), 13u);
}

// One layer with a window of 32 positions: 8 pages of a sequence.
Plan WithWindow() {
  Plan plan = TwoSequences();
  plan.parts = {{.block = {BlockKind::kAttention, 0}, .kv_pages = 16, .window = {.positions = 32, .pages = WindowPages(32, 64)}}};
  plan.stages = {{0, 0, 1}};
  plan.devices[0].kv_pages = 16;
  return plan;
}

TEST(KvBookTest, KvThatAWindowHasGivenBackIsNotShared) {
  const Plan plan = WithWindow();
  ASSERT_EQ(plan.parts[0].window.pages, 8);
  KvBook book(plan, {.layers = 1});
  ASSERT_TRUE(book.Begin(Admit(0, 1000)).ok() && book.Reserve(Admit(0, 1000)).ok());
  EXPECT_EQ(book.pages().free_pages(), 8);
  book.Reach(Step(0, 127));
  EXPECT_TRUE(book.Begin(Admit(1, 1000, 16, 0)).ok()) << "all pages are there";
  book.Release(1);
  book.Reach(Step(0, 128));  // takes the first page
  EXPECT_THAT(Says(book.Begin(Admit(1, 1000, 32, 0))), HasSubstr("so it can begin with no fewer than 47"));
  EXPECT_TRUE(book.Begin(Admit(1, 1000, 48, 0)).ok());
  EXPECT_EQ(book.pages().Pages(1, 0).size(), 3u);
  book.Reach(Step(0, 499));  // 32 pages, of which 24 are gone
  ASSERT_TRUE(book.Keep(0, 496).ok());
  EXPECT_THAT(Says(book.Begin(Admit(0, 1000, 400))), HasSubstr("no fewer than 415"));
  EXPECT_TRUE(book.Begin(Admit(0, 1000, 416)).ok());
  book.Release(0);
  EXPECT_TRUE(book.Begin(Admit(0, 1000)).ok()) << "the next sequence computes its own KV";
  book.Reach(Step(0, 15));
  ASSERT_TRUE(book.Reserve(Admit(0, 1000)).ok() && book.Keep(0, 16).ok());
  EXPECT_TRUE(book.Begin(Admit(0, 1000, 16)).ok());
}

TEST(KvBookTest, ASequenceBeginsWithASnapshotOfAWindowThatHasPassed) {
  Plan plan = WithWindow();
  plan.state_snapshots = 1;
  KvBook book(plan, {.layers = 1});
  StepOrder taken = Step(0, 95);
  taken.microbatches[0].rows[0].snapshot = 0;
  ASSERT_TRUE(book.Begin(Admit(0, 1000)).ok() && book.Reserve(Admit(0, 1000)).ok() && book.states().Begin(taken).ok());
  book.Reach(Step(0, 499));
  AdmitOrder begins = Admit(1, 1000, 96, 0);
  EXPECT_THAT(Says(book.Begin(begins)), HasSubstr("so it can begin with no fewer than 415"));
  begins.snapshot = 0;
  ASSERT_TRUE(book.Begin(begins).ok());
  EXPECT_EQ(book.NextCopy()->pages, 6);
  EXPECT_EQ(book.NextRestore(), (StateBook::Restore{.from = 0, .snapshot = 0, .to = 1, .positions = 96}));
  EXPECT_EQ(book.pages().Pages(1, 0).size(), 6u);
  ASSERT_TRUE(book.Keep(1, 96).ok());
  EXPECT_THAT(Says(book.Begin(Admit(1, 1000, 80))), HasSubstr("no fewer than 95")) << "the snapshot has the window before 96";
  EXPECT_TRUE(book.Begin(Admit(1, 1000, 96)).ok());
}

TEST(KvBookTest, OfAWindowAPlanTakesOverOnlyWhatIsStillSeen) {
  const Plan plan = WithWindow();
  KvBook book(plan, {.layers = 1});
  ASSERT_TRUE(book.TakeOver({{.from = 1, .to = 0, .positions = 500}}, {0}).ok());
  EXPECT_EQ(book.pages().free_pages(), 8);
  EXPECT_THAT(Says(book.Begin(Admit(1, 1000, 480, 0))), HasSubstr("no fewer than 495"));
  EXPECT_TRUE(book.Begin(Admit(0, 1000, 500)).ok());
}

TEST(KvBookTest, WherePiecesMayBeOnADiskASlotIsUsedInPiecesAndNotCopied) {
  Plan plan = TwoSequences();
  plan.devices[0].max_layer_pages = 40;
  KvBook book(plan, {.layers = 1, .leaves = true});
  book.SetReach(512);
  Grow(book, 0, 600);
  book.Written(*book.NextWrite(), absl::OkStatus());
  EXPECT_EQ(book.Extend(Step(1, 127)).value(), true) << "the first piece makes room";
  EXPECT_EQ(book.away().away(0), 1);
  EXPECT_THAT(Says(book.Begin(Admit(1, 600, 256, 0))), HasSubstr("cannot be copied"));
  ASSERT_TRUE(book.Keep(0, 512).ok());
  EXPECT_THAT(Says(book.Begin(Admit(0, 600, 272))), HasSubstr("not in pages or pieces"));
  const KvAway::Piece second = *book.NextWrite();
  ASSERT_TRUE(book.Begin(Admit(0, 600, 256)).ok());
  EXPECT_EQ(book.away().away(0), 1) << "it stays on the disk";
  EXPECT_EQ(book.pages().Pages(0, 0).size(), 16u);
  book.Written(second, absl::CancelledError("its sequence has ended"));
  Grow(book, 0, 512);
  EXPECT_TRUE(book.NextWrite()) << "the new second piece; the old one is no error";
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
