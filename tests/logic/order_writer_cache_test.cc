// OrderWriter: KV that requests share.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cases.h"
#include "tests/logic/cached_device.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(OrderWriterCacheTest, TheNextTurnContinuesInTheSlotOfTheTurnBefore) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 30), 20)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:48")) << "49 of 50 positions are computed";
  const int64_t before = device.rows();
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(JoinIds(GroupIds(100, 30), Answer(GroupIds(100, 30), 20)), GroupIds(0, 10)), 3)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=1 from -1:48", "keep 0:48"));
  EXPECT_LE(device.rows() - before, 12 + 3 + 1) << "60 ids, of which 48 are not computed, and the answer";
}

TEST(OrderWriterCacheTest, TheLastIdOfAPromptIsComputedAlways) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 48))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:48"));
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 48))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=1 from -1:32", "keep 0:48"));
}

TEST(OrderWriterCacheTest, ARequestThatSharesLittleOfAnIdleSlotCopiesItAndTheSlotStays) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 80))).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 20), GroupIds(0, 20)))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:80", "1=1 from 0:16", "keep 1:32"));
  // No other slot is free, so the oldest idle one gives way; the one that is used does not.
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 35), GroupIds(200, 20)))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("free 1", "1=2 from 0:32", "keep 1:48"));
}

TEST(OrderWriterCacheTest, ThePromptOfChoicesIsComputedOnce) {
  OrderWriter writer(Sharing(4));
  CachedDevice device(writer);
  for (int choice = 0; choice < 4; ++choice) ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 100), 5)).ok());
  device.Order();
  EXPECT_THAT(writer.started(), ElementsAre(0, 1, 2, 3)) << "all have slots";
  EXPECT_THAT(device.Said(), ElementsAre("0=0")) << "64 rows of the prompt are ordered";
  device.EndStep();
  device.Order();
  EXPECT_THAT(writer.started(), IsEmpty());
  EXPECT_THAT(device.Said(), ElementsAre("1=1 from 0:96", "2=2 from 0:96", "3=3 from 0:96")) << "behind the step with the 96th row";
  device.RunAll();
  EXPECT_LE(device.rows(), 100 + 3 * 4 + 4 * (5 + 1));
}

TEST(OrderWriterCacheTest, ARunningRequestIsSharedAsFarAsItIsOrdered) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 50), 200)).ok());
  device.Order();
  for (int step = 0; step < 5; ++step) {
    device.EndStep();
    device.Order();
  }
  (void)device.Said();
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 50), GroupIds(0, 9)), 5)).ok());
  device.Order();
  EXPECT_THAT(device.Said(), ElementsAre("1=1 from 0:48"));
}

TEST(OrderWriterCacheTest, AnotherGroupAndARequestThatDoesNotAskShareNothing) {
  OrderWriter writer(Sharing(4));
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60), 1, /*group=*/1)).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60), 1, /*group=*/2)).ok());
  Request quiet = AskOfGroup(GroupIds(100, 60), 1, /*group=*/1);
  quiet.cache_prompt = false;
  ASSERT_TRUE(writer.Add(quiet).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:48", "1=1", "2=2", "keep 1:48", "free 2"));
  EXPECT_EQ(device.shared(), 0);
}

TEST(OrderWriterCacheTest, RowsWhoseLogitsAreAskedForAreComputed) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60))).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60), 0), OrderWriter::Logits::kAll).ok());
  device.Order();
  EXPECT_EQ(device.shared(), 0) << "a scored prompt";
}

TEST(OrderWriterCacheTest, IdleSlotsGiveWayBeforeARequestWaits) {
  OrderWriter writer(Sharing());
  CachedDevice device(writer);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000 * (i + 1), 40))).ok());
    device.RunAll();
  }
  (void)device.Said();
  for (int i = 2; i < 4; ++i) ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000 * (i + 1), 40), 50)).ok());
  device.Order();
  EXPECT_THAT(device.Said(), ElementsAre("free 0", "0=2", "free 1", "1=3")) << "the oldest first";
  EXPECT_TRUE(writer.cache().empty());
}

TEST(OrderWriterCacheTest, IdleSlotsKeepNoMoreThanTheBound) {
  OrderWriter::Options options = Sharing(4);
  options.cache.most_pages = 5;
  OrderWriter writer(options);
  CachedDevice device(writer);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000 * i, 40))).ok());
    device.RunAll();
  }
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:32", "1=1", "keep 1:32", "2=2", "keep 2:32", "free 0"));
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(9000, 100))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=3", "free 0")) << "6 pages are more than the bound";
}

TEST(OrderWriterCacheTest, WithoutABoundNothingIsKeptOrShared) {
  OrderWriter::Options options = Sharing();
  options.cache = {};
  OrderWriter writer(options);
  CachedDevice device(writer);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60), 5)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "1=1", "free 0", "free 1"));
}

// Pieces of 256 positions may be on a disk.
TEST(OrderWriterCacheTest, WithoutCopiesOnlyAnIdleSlotItselfIsUsed) {
  OrderWriter::Options options = Sharing();
  options.context = 1000, options.cache.unit = 256, options.copies_kv = false;
  OrderWriter writer(options);
  CachedDevice device(writer);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 600), 1)).ok());
  device.RunAll();
  EXPECT_EQ(device.shared(), 0);
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "1=1", "keep 0:512", "keep 1:512", "free 0"));
  ASSERT_TRUE(writer.Add(AskOfGroup(JoinIds(GroupIds(100, 400), GroupIds(0, 20)), 1)).ok());
  device.Order();
  EXPECT_THAT(device.Said(), ElementsAre("1=2 from -1:256"));
}

TEST(OrderWriterCacheTest, ARequestThatAwaitedAnotherGoesOnWhenThatOneStops) {
  OrderWriter writer(Sharing(3));
  CachedDevice device(writer);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 200), 5)).ok());
  device.Order();
  EXPECT_THAT(device.Said(), ElementsAre("0=0"));
  writer.Stop(0);
  device.Order();
  EXPECT_THAT(device.Said(), ElementsAre("keep 0:64", "1=1 from 0:64")) << "the third awaits the second now";
  writer.Stop(2);
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("keep 1:192", "free 0")) << "devices know nothing of the third";
  EXPECT_TRUE(writer.idle());
}

TEST(OrderWriterCacheTest, WhileKvGrowsIdleSlotsGiveWayBeforeALevelRises) {
  OrderWriter::Options options = Sharing(3);
  options.levels = {{.layer_pages = 8}, {.layer_pages = 40}};
  OrderWriter writer(options);
  CachedDevice device(writer);
  device.most_pages = 8;
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(100, 60))).ok());
  device.RunAll();
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(1000, 20))).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("0=0", "keep 0:48", "1=1", "keep 1:16"));
  ASSERT_TRUE(writer.Add(AskOfGroup(GroupIds(2000, 60), 20)).ok());
  device.RunAll();
  EXPECT_THAT(device.Said(), ElementsAre("free 0", "2=2", "keep 2:64"))
      << "5 pages of its own and 4 that are kept are too many, and no level rises";
}

// Against a device that computes hashes of all ids, with random bounds.
enum class Shared { kPages, kStates, kWindows };
void ShareAtRandom(Shared what) {
  const bool has_state = what == Shared::kStates;
  int64_t rows = 0, shared = 0, at_snapshots = 0, interrupted = 0;
  for (uint32_t seed = 1; seed <= static_cast<uint32_t>(Cases(200, 2000)); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    OrderWriter::Options options = Sharing(draw(1, 5));
    // Windows give pages back in longer sequences only, and need snapshots when these have gone on.
    const int longer = what == Shared::kWindows ? 3 : 1;
    options.context = 160 * longer, options.chunk = options.max_rows = options.sequences + draw(0, 40);
    options.chunks = draw(1, 3), options.microbatches = std::max(1, options.chunks);
    options.look_ahead = draw(1, 4), options.prompts_ahead = draw(1, 8);
    options.cache.most_pages = draw(0, 3) == 0 ? draw(1, 12) : 1000;
    if (draw(0, 3) == 0) options.cache.unit = 32, options.copies_kv = false;
    if (has_state) options.snapshots = draw(0, 4), options.cache.needs_snapshot = true;
    if (const int64_t window = what == Shared::kPages ? draw(-30, 30) : longer > 1 ? draw(1, 60) : 0; window > 0)
      options.window = {.positions = window, .pages = WindowPages(window, options.max_rows)};
    if (what == Shared::kWindows) options.snapshots = draw(0, 3);
    OrderWriter writer(options);
    CachedDevice device(writer, has_state ? std::optional(options.snapshots) : std::nullopt);
    device.window = options.window;
    if (what == Shared::kWindows) device.window_snapshots = options.snapshots;
    std::vector<std::vector<int32_t>> prompts = {GroupIds(100, 60 * longer)};
    std::map<RequestId, std::vector<int32_t>> answers;
    int requests = 0;
    const int total = draw(2, 15);
    for (int turn = 0; turn < 100'000 && (requests < total || !writer.idle()); ++turn) {
      if (requests < total && draw(0, longer > 1 ? 40 : 2) == 0) {
        std::vector<int32_t> prompt = prompts[static_cast<size_t>(draw(0, static_cast<int>(prompts.size()) - 1))];
        if (draw(0, 1) == 0) prompt = JoinIds(prompt, Answer(prompt, draw(0, 40)));
        prompt.resize(static_cast<size_t>(std::min<int>(draw(1, 150 * longer), static_cast<int>(prompt.size()))));
        if (draw(0, 1) == 0) prompt.push_back(draw(0, 99));
        const int most = std::min<int>(longer > 1 ? 250 : 30, 160 * longer - static_cast<int>(prompt.size()));
        ASSERT_TRUE(writer.Add(AskOfGroup(prompt, draw(1, most), draw(0, 3) == 0 ? 1 : 0)).ok());
        prompts.push_back(std::move(prompt));
        ++requests;
      }
      if (const int id = draw(0, (longer > 1 ? 60 : 6) * total); id < requests && !writer.finished(id)) writer.Stop(id);
      ASSERT_NO_FATAL_FAILURE(device.Order());
      ASSERT_LE(writer.cache().pages(), options.cache.most_pages);
      if (device.has_step()) ASSERT_NO_FATAL_FAILURE(device.EndStep());
      if (draw(0, longer > 1 ? 200 : 40) > 0) continue;
      if (what == Shared::kWindows) device.window_snapshots = options.snapshots = draw(0, 3);
      const auto continued = writer.GoOnInterrupted(options);
      ASSERT_TRUE(continued.ok()) << continued.status();
      ASSERT_NO_FATAL_FAILURE(device.Change(*continued));
      interrupted += std::ssize(*continued);
    }
    EXPECT_EQ(requests, total);
    EXPECT_TRUE(writer.idle());
    rows += device.rows(), shared += device.shared(), at_snapshots += device.begun_at_snapshots();
  }
  EXPECT_GT(shared, rows / (what == Shared::kPages ? 5 : 10)) << "much is shared";
  EXPECT_EQ(at_snapshots > 0, what == Shared::kWindows);
  const int64_t expected = what == Shared::kWindows ? 30 : 50;
  EXPECT_GT(interrupted, ManyCases() ? expected : expected / 2);
}

TEST(OrderWriterCacheTest, RandomRequestsShareKvOfEqualIdsOnly) {
  ShareAtRandom(Shared::kPages);
}

TEST(OrderWriterCacheTest, RandomRequestsShareStatesOfEqualIdsOnly) {
  ShareAtRandom(Shared::kStates);
}

TEST(OrderWriterCacheTest, RandomRequestsShareWindowsOfEqualIdsOnly) {
  ShareAtRandom(Shared::kWindows);
}

}  // namespace
}  // namespace lime
