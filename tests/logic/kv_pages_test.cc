#include "daemon/logic/pages/kv_pages.h"

#include <random>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

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
