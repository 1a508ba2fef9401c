#include "daemon/logic/pages/kv_pages.h"

#include <limits>
#include <random>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/model/kv_window.h"

namespace lime {
namespace {

TEST(KvPagesTest, RefusesWithTheNumbers) {
  KvPages pages({.num_pages = 8, .num_layers = 2, .max_sequences = 2});
  EXPECT_TRUE(pages.Reserve(0, 33).ok());  // 3 pages in each of 2 layers
  EXPECT_EQ(pages.free_pages(), 2);
  EXPECT_EQ(pages.Reserve(0, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(pages.Reserve(1, 17).message()), ::testing::HasSubstr("needs 4 KV pages, but 2 of 8 are free"));
  pages.Release(0);
  EXPECT_TRUE(pages.Reserve(1, 64).ok());
}

TEST(KvPagesTest, ReleasedPagesGoToOthersAndTheRestStays) {
  KvPages pages({.num_pages = 12, .num_layers = 2, .max_sequences = 2});
  ASSERT_TRUE(pages.Reserve(0, 80).ok());  // 5 pages in each layer
  EXPECT_FALSE(pages.Reserve(1, 32).ok());
  const std::vector<int32_t> last(pages.Pages(0, 1).begin() + 2, pages.Pages(0, 1).end());
  pages.ReleaseRange(0, 0, 32);
  EXPECT_EQ(pages.free_pages(), 6);
  EXPECT_THAT(pages.Pages(0, 1).subspan(0, 2), ::testing::ElementsAre(-1, -1));
  EXPECT_THAT(pages.Pages(0, 1).subspan(2), ::testing::ElementsAreArray(last));
  ASSERT_TRUE(pages.Reserve(1, 32).ok());
  EXPECT_TRUE(pages.Extend(0, 96).ok());  // goes on behind what it has
  EXPECT_EQ(pages.free_pages(), 0);
  pages.Release(0);
  pages.Release(1);
  EXPECT_EQ(pages.free_pages(), 12);
}

TEST(KvPagesTest, ASlotThatIsCutKeepsItsFirstPages) {
  KvPages pages({.num_pages = 12, .num_layers = 2, .max_sequences = 2});
  ASSERT_TRUE(pages.Reserve(0, 90).ok());  // 6 pages in each layer
  const std::vector<int32_t> first(pages.Pages(0, 1).begin(), pages.Pages(0, 1).begin() + 3);
  pages.ReleaseRange(0, 0, 16);
  pages.ReleaseRange(0, 80, 96);
  EXPECT_EQ(pages.free_pages(), 4);
  pages.Cut(0, 48);
  EXPECT_EQ(pages.free_pages(), 8);
  EXPECT_THAT(pages.Pages(0, 1), ::testing::ElementsAre(-1, first[1], first[2]));
  pages.Cut(0, 64);
  EXPECT_EQ(pages.Pages(0, 1).size(), 3u) << "it has fewer";
  EXPECT_TRUE(*pages.Extend(0, 64));
  pages.Cut(0, 0);
  EXPECT_EQ(pages.free_pages(), 12);
}

TEST(KvPagesTest, WhereFewAreKeptALayersPagesAreARing) {
  KvPages pages({.num_pages = 2 * 2 + 3, .num_layers = 2, .max_sequences = 2, .retained_pages = 2});
  ASSERT_TRUE(pages.Reserve(1, 70).ok());  // 5 pages, of which 3 are evicted in the end
  EXPECT_EQ(pages.free_pages(), 0);
  const std::vector<int32_t> ring(pages.Pages(1, 0).begin(), pages.Pages(1, 0).begin() + 2);
  EXPECT_THAT(pages.Pages(1, 0), ::testing::ElementsAre(ring[0], ring[1], ring[0], ring[1], ring[0]));
  EXPECT_FALSE(*pages.Evict(1, 32));
  EXPECT_TRUE(*pages.Evict(1, 49));       // of 4 pages, 2 are evicted
  EXPECT_FALSE(*pages.Evict(1, 64));      // they are
  EXPECT_FALSE(pages.Evict(1, 48).ok());  // and do not come back
  // What is kept lies where it was; what is not in pages that are no layer's own.
  EXPECT_EQ(pages.Pages(1, 0)[2], ring[0]);
  EXPECT_EQ(pages.Pages(1, 0)[3], ring[1]);
  std::set<int32_t> all;
  for (int64_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(pages.Pages(1, layer)[0], pages.Pages(1, 0)[0]);
    EXPECT_EQ(pages.Pages(1, layer)[1], pages.Pages(1, 0)[1]);
    all.insert(pages.Pages(1, layer).begin(), pages.Pages(1, layer).end());
  }
  EXPECT_EQ(all.size(), 2u * 2 + 2);
  EXPECT_FALSE(pages.Evict(1, 96).ok());
  EXPECT_FALSE(pages.Evict(0, 48).ok());
  pages.Release(1);
  EXPECT_EQ(pages.free_pages(), 7);
  ASSERT_TRUE(pages.Reserve(0, 20).ok());  // nothing of it is ever evicted
  EXPECT_EQ(pages.free_pages(), 3);
}

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

TEST(KvPagesTest, ALayerWithAWindowUsesItsPagesInTurn) {
  KvPages pages({.num_pages = 20, .num_layers = 2, .max_sequences = 2, .most_pages = {3, kAll}});
  EXPECT_EQ(pages.PagesFor(40), 3 + 3);
  EXPECT_EQ(pages.PagesFor(80), 3 + 5);
  ASSERT_TRUE(*pages.Extend(0, 40));
  EXPECT_EQ(pages.free_pages(), 14);
  ASSERT_TRUE(*pages.Extend(0, 80));
  EXPECT_EQ(pages.free_pages(), 12) << "only the layer that keeps all has got pages";
  const std::vector<int32_t> ring(pages.Pages(0, 0).begin(), pages.Pages(0, 0).begin() + 3);
  EXPECT_THAT(pages.Pages(0, 0), ::testing::ElementsAre(ring[0], ring[1], ring[2], ring[0], ring[1]));
  EXPECT_THAT(std::string(pages.Reserve(1, 10 * 16).message()), ::testing::HasSubstr("needs 13 KV pages, but 12 of 20 are free"));
  ASSERT_TRUE(pages.Reserve(1, 9 * 16).ok());
  EXPECT_EQ(pages.free_pages(), 0);
  pages.Cut(1, 4 * 16);
  EXPECT_EQ(pages.free_pages(), 5) << "the ring is still needed";
  pages.Cut(1, 2 * 16);
  EXPECT_EQ(pages.free_pages(), 8);
  pages.Release(0);
  pages.Release(1);
  EXPECT_EQ(pages.free_pages(), 20);
}

// Writes micro-batches as devices do, and looks at what every row attends to. Memory stays within
// the pages of the window.
TEST(KvPagesTest, BehindAWindowNoRowMissesAPage) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const int64_t window = 1 + random() % 200, rows = 1 + random() % 150, slots = 1 + random() % 3;
    const int64_t most = WindowPages(window, rows), context = 1000 + random() % 1000;
    KvPages pages({.num_pages = slots * most, .num_layers = 1, .max_sequences = slots, .most_pages = {most}});
    std::vector<std::pair<int64_t, int64_t>> written(static_cast<size_t>(slots * most));  // by page: slot, number within it
    std::vector<int64_t> next(static_cast<size_t>(slots), 0);
    for (int step = 0; step < 300; ++step) {
      const auto slot = static_cast<int32_t>(random() % slots);
      int64_t& begin = next[static_cast<size_t>(slot)];
      const int64_t end = std::min<int64_t>(context, begin + 1 + random() % std::max(rows, kLeastWindowRows));
      if (begin == end) {
        pages.Release(slot);
        begin = 0;
        continue;
      }
      if (begin == 0 && random() % 2 == 0) ASSERT_TRUE(pages.Reserve(slot, context).ok());
      ASSERT_TRUE(pages.Extend(slot, end).ok());
      const auto here = pages.Pages(slot, 0);
      for (int64_t at = begin / 16; at <= (end - 1) / 16; ++at) written[static_cast<size_t>(here[static_cast<size_t>(at)])] = {slot, at};
      for (int64_t at = std::max<int64_t>(0, begin + 1 - window) / 16; at <= (end - 1) / 16; ++at)
        ASSERT_EQ(written[static_cast<size_t>(here[static_cast<size_t>(at)])], std::pair(int64_t{slot}, at)) << "seed " << seed;
      begin = end;
    }
  }
}

TEST(KvPagesTest, APageHasAtMostOneOwner) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const int64_t layers = 1 + random() % 4, slots = 1 + random() % 5;
    KvPages pages({.num_pages = 60, .num_layers = layers, .max_sequences = slots});
    std::vector<int64_t> held(slots, 0);
    for (int step = 0; step < 200; ++step) {
      const int32_t slot = static_cast<int32_t>(random() % slots);
      if (held[slot] > 0) {
        pages.Release(slot);
        held[slot] = 0;
      } else if (const int64_t positions = 1 + random() % 100; pages.Reserve(slot, positions).ok()) {
        held[slot] = positions;
      }
      std::set<int32_t> owned;
      for (int32_t s = 0; s < slots; ++s) {
        for (int64_t layer = 0; layer < layers; ++layer) {
          ASSERT_GE(static_cast<int64_t>(pages.Pages(s, layer).size()) * kPositionsPerPage, held[s]);
          for (const int32_t page : pages.Pages(s, layer))
            ASSERT_TRUE(owned.insert(page).second && page >= 0 && page < 60) << "seed " << seed;
        }
      }
      ASSERT_EQ(static_cast<int64_t>(owned.size()) + pages.free_pages(), 60);
    }
  }
}

TEST(KvPagesTest, APoolGrowsWithItsSequencesAndShrinksOnceItsLastPagesAreFree) {
  KvPages pages({.num_pages = 4, .num_layers = 2, .max_sequences = 2});
  EXPECT_TRUE(*pages.Extend(0, 10));
  EXPECT_FALSE(*pages.Extend(0, 16));
  EXPECT_TRUE(*pages.Extend(0, 17));
  EXPECT_FALSE(pages.Extend(1, 1).ok());
  pages.SetNumPages(8);
  EXPECT_TRUE(*pages.Extend(1, 20));
  EXPECT_EQ(pages.free_pages(), 0);
  pages.SetNumPages(4);
  EXPECT_FALSE(pages.Fits());
  EXPECT_FALSE(pages.Extend(0, 40).ok());
  pages.Release(0);
  EXPECT_FALSE(pages.Fits()) << "slot 1 has pages 4 to 7";
  EXPECT_EQ(pages.free_pages(), 4);
  pages.Release(1);
  EXPECT_TRUE(pages.Fits());
  EXPECT_EQ(pages.free_pages(), 4);
  EXPECT_TRUE(*pages.Extend(1, 32));
  EXPECT_THAT(pages.Pages(1, 1), ::testing::ElementsAre(1, 3)) << "the lowest ones";
}

}  // namespace
}  // namespace lime
