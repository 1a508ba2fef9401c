#include "coordinator/logic/prefix_cache.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// `count` ids from `first` on.
std::vector<int32_t> Ids(int32_t first, int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

std::vector<int32_t> Join(std::vector<int32_t> ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

TEST(PrefixCacheTest, EqualIdsAreSharedInWholeUnitsFromTheFirstOn) {
  const PrefixCache cache({.most_pages = 100, .unit = 16});
  EXPECT_EQ(cache.Shared(Ids(0, 40), Ids(0, 40), 40), 32);
  EXPECT_EQ(cache.Shared(Ids(0, 40), Ids(0, 32), 40), 32);
  EXPECT_EQ(cache.Shared(Ids(0, 40), Ids(0, 31), 40), 16);
  EXPECT_EQ(cache.Shared(Ids(0, 32), Ids(0, 32), 31), 16) << "not more than may be used";
  EXPECT_EQ(cache.Shared(Join(Ids(0, 20), Ids(90, 20)), Ids(0, 40), 40), 16);
  EXPECT_EQ(cache.Shared(Ids(1, 40), Ids(0, 40), 40), 0);
  EXPECT_EQ(cache.Shared(Ids(0, 40), Ids(0, 40), -1), 0);
  EXPECT_EQ(PrefixCache({.most_pages = 100, .unit = 256}).Shared(Ids(0, 600), Ids(0, 511), 600), 256);
  EXPECT_EQ(PrefixCache({.most_pages = 100, .unit = 0}).Shared(Ids(0, 40), Ids(0, 40), 40), 0) << "the plan shares none";
}

TEST(PrefixCacheTest, FindsMostAndAmongEqualsTheOneThatLosesLeast) {
  PrefixCache cache({.most_pages = 100, .unit = 16});
  EXPECT_THAT(cache.Keep({.slot = 3, .group = 0, .ids = Join(Ids(0, 32), Ids(70, 48))}), IsEmpty());
  EXPECT_THAT(cache.Keep({.slot = 1, .group = 0, .ids = Join(Ids(0, 32), Ids(80, 16))}), IsEmpty());
  EXPECT_THAT(cache.Keep({.slot = 2, .group = 0, .ids = Join(Ids(0, 16), Ids(60, 16))}), IsEmpty());
  const auto match = cache.Find(0, Ids(0, 60), 59);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->slot, 1);
  EXPECT_EQ(match->positions, 32);
  EXPECT_EQ(match->lost, 16);
  EXPECT_EQ(cache.Find(0, Ids(0, 60), 31)->positions, 16);
  EXPECT_FALSE(cache.Find(0, Ids(0, 60), 15));
  EXPECT_FALSE(cache.Find(1, Ids(0, 60), 59)) << "another group";
  EXPECT_FALSE(cache.Find(0, Ids(5, 60), 59));
}

TEST(PrefixCacheTest, IfTheModelHasAStateASequenceBeginsWhereASnapshotWasTaken) {
  PrefixCache cache({.most_pages = 100, .unit = 16, .needs_snapshot = true});
  const std::vector<int64_t> snapshots = {32, 0, 80};
  EXPECT_EQ(cache.Shared(Ids(0, 100), Ids(0, 96), 99, snapshots), 80);
  EXPECT_EQ(cache.Shared(Ids(0, 100), Ids(0, 79), 99, snapshots), 32);
  EXPECT_EQ(cache.Shared(Ids(0, 100), Ids(0, 96), 31, snapshots), 0);
  EXPECT_EQ(cache.Shared(Ids(0, 100), Ids(0, 96), 99), 0) << "none was taken";
  EXPECT_EQ(cache.Kept(95, snapshots), 80);
  EXPECT_EQ(cache.Kept(79, snapshots), 32) << "KV behind the last snapshot is of no use";
  EXPECT_EQ(cache.Kept(31, snapshots), 0);
  EXPECT_THAT(cache.Keep({.slot = 1, .group = 0, .ids = Ids(0, 80), .snapshots = snapshots}), IsEmpty());
  const auto match = cache.Find(0, Ids(0, 60), 59);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->positions, 32);
  EXPECT_EQ(match->snapshot, 0);
  EXPECT_EQ(match->lost, 48);
  // One that has more ids, but no snapshot at 32, does not do what the first one can do.
  EXPECT_THAT(cache.Keep({.slot = 2, .group = 0, .ids = Ids(0, 96), .snapshots = {0, 80, 96}}), IsEmpty());
  EXPECT_THAT(cache.Keep({.slot = 3, .group = 0, .ids = Ids(0, 112), .snapshots = {96, 80, 112}}), ElementsAre(2));
  EXPECT_EQ(cache.Find(0, Ids(0, 200), 199)->snapshot, 2);
  EXPECT_EQ(cache.Take(1).snapshots, snapshots);
}

// Its plan before kept pages, and this one keeps pieces.
TEST(PrefixCacheTest, ASnapshotWithinAUnitIsOfNoUse) {
  const PrefixCache cache({.most_pages = 100, .unit = 256, .needs_snapshot = true});
  const std::vector<int64_t> snapshots = {144, 256, 400};
  EXPECT_EQ(cache.Kept(450, snapshots), 256);
  EXPECT_EQ(cache.Kept(200, snapshots), 0);
  EXPECT_EQ(cache.Shared(Ids(0, 500), Ids(0, 450), 499, snapshots), 256);
}

TEST(PrefixCacheTest, WhereLayersHaveGivenPagesBackASequenceBeginsBehindThemOrAtASnapshot) {
  PrefixCache cache({.most_pages = 100, .unit = 16});
  const std::vector<int64_t> snapshots = {0, 32};
  EXPECT_EQ(cache.Shared(Ids(0, 100), Ids(0, 96), 99, snapshots, 80), 96);
  EXPECT_EQ(cache.Shared(Ids(0, 100), Ids(0, 79), 99, snapshots, 80), 32);
  EXPECT_EQ(cache.Shared(Ids(0, 100), Ids(0, 31), 99, snapshots, 80), 0);
  EXPECT_EQ(cache.SnapshotFor(96, snapshots, 80), -1) << "its pages are there";
  EXPECT_EQ(cache.SnapshotFor(32, snapshots, 80), 1);
  EXPECT_EQ(cache.SnapshotFor(32, snapshots, 32), -1);
  EXPECT_EQ(cache.Kept(95, snapshots, 80), 80);
  EXPECT_EQ(cache.Kept(79, snapshots, 80), 32) << "nobody could begin with more";
  EXPECT_EQ(cache.Kept(79, {}, 80), 0);
  EXPECT_THAT(cache.Keep({.slot = 1, .group = 0, .ids = Ids(0, 80), .snapshots = snapshots, .least = 70}), IsEmpty());
  EXPECT_EQ(cache.Find(0, Ids(0, 200), 199)->snapshot, -1);
  const auto match = cache.Find(0, Ids(0, 60), 59);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->positions, 32);
  EXPECT_EQ(match->snapshot, 1);
}

TEST(PrefixCacheTest, OnlyWholeUnitsWithinTheBoundAreKept) {
  const PrefixCache cache({.most_pages = 4, .unit = 16});
  EXPECT_EQ(cache.Kept(15), 0);
  EXPECT_EQ(cache.Kept(47), 32);
  EXPECT_EQ(cache.Kept(79), 64);
  EXPECT_EQ(cache.Kept(80), 0) << "5 pages are too many";
  EXPECT_EQ(PrefixCache({.most_pages = 100, .unit = 256}).Kept(600), 512);
  EXPECT_EQ(PrefixCache({.most_pages = 0, .unit = 16}).Kept(600), 0);
  EXPECT_FALSE(PrefixCache({.most_pages = 0, .unit = 16}).on());
}

TEST(PrefixCacheTest, TheOldestAreFreedBeyondTheBound) {
  PrefixCache cache({.most_pages = 4, .unit = 16});
  EXPECT_THAT(cache.Keep({.slot = 0, .group = 0, .ids = Ids(0, 32)}), IsEmpty());
  EXPECT_THAT(cache.Keep({.slot = 1, .group = 0, .ids = Ids(100, 32)}), IsEmpty());
  cache.Touch(0);
  EXPECT_THAT(cache.Keep({.slot = 2, .group = 0, .ids = Ids(200, 16)}), ElementsAre(1));
  EXPECT_EQ(cache.pages(), 3);
  EXPECT_THAT(cache.Keep({.slot = 1, .group = 0, .ids = Ids(300, 64)}), ElementsAre(0, 2));
  EXPECT_EQ(cache.pages(), 4);
}

TEST(PrefixCacheTest, ASequenceThatCanDoNoMoreThanTheNewOneIsFreed) {
  PrefixCache cache({.most_pages = 100, .unit = 16});
  (void)cache.Keep({.slot = 0, .group = 0, .ids = Ids(0, 16)});
  (void)cache.Keep({.slot = 1, .group = 1, .ids = Ids(0, 16)});
  EXPECT_THAT(cache.Keep({.slot = 2, .group = 0, .ids = Ids(0, 48)}), ElementsAre(0)) << "the other is of another group";
  EXPECT_THAT(cache.Keep({.slot = 0, .group = 0, .ids = Ids(0, 48)}), ElementsAre(2)) << "the same again";
}

TEST(PrefixCacheTest, EvictsTheOldestAndLeavesTheOneToBeUsed) {
  PrefixCache cache({.most_pages = 100, .unit = 16});
  EXPECT_EQ(cache.Evict(), std::nullopt);
  for (int32_t slot = 0; slot < 3; ++slot) (void)cache.Keep({.slot = slot, .group = 0, .ids = Ids(100 * slot, 16)});
  EXPECT_EQ(cache.Evict(0), 1);
  cache.Take(0);
  EXPECT_EQ(cache.Evict(2), std::nullopt);
  EXPECT_EQ(cache.Evict(), 2);
  EXPECT_TRUE(cache.empty());
}

}  // namespace
}  // namespace lime
