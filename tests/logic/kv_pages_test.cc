#include "daemon/logic/kv_pages.h"

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
  EXPECT_THAT(std::string(pages.Reserve(1, 17).message()), ::testing::HasSubstr("needs 4 KV pages and 2 of 8 are free"));
  pages.Release(0);
  EXPECT_TRUE(pages.Reserve(1, 64).ok());
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

}  // namespace
}  // namespace lime
