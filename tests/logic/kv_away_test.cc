#include "daemon/logic/pages/kv_away.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "daemon/logic/pages/kv_pages.h"
#include "gtest/gtest.h"
#include "planner/plan/kv_spill.h"
#include "tests/cases.h"

namespace lime {
namespace {

TEST(KvAwayTest, APieceIsWrittenOnceItIsFullAndMayGoAndGoesWhenItIsWritten) {
  KvAway away(2);
  away.Computed(0, 600);
  EXPECT_EQ(away.BeginWrite(), std::nullopt) << "none may go yet";
  away.SetReach(1);
  EXPECT_EQ(away.BeginWrite(), (KvAway::Piece{.sequence = 0, .piece = 0}));
  EXPECT_EQ(away.BeginWrite(), std::nullopt) << "one at a time";
  EXPECT_EQ(away.FreeNext(), std::nullopt) << "it is not written yet";
  EXPECT_TRUE(away.HasToWrite());
  away.EndWrite(true);
  EXPECT_FALSE(away.HasToWrite()) << "the second piece is full and may not go";
  EXPECT_EQ(away.FreeNext(), (KvAway::Piece{.sequence = 0, .piece = 0}));
  EXPECT_EQ(away.FreeNext(), std::nullopt);
  EXPECT_EQ(away.away(0), 1);
  EXPECT_EQ(away.most_away(), 1);
}

TEST(KvAwayTest, ThoseClosestToTheFrontGoFirst) {
  KvAway away(3);
  away.SetReach(8);
  away.Computed(0, 1024);
  away.Computed(2, 512);
  std::vector<std::pair<int32_t, int64_t>> written, gone;
  while (const auto piece = away.BeginWrite()) written.emplace_back(piece->sequence, piece->piece), away.EndWrite(true);
  while (const auto piece = away.FreeNext()) gone.emplace_back(piece->sequence, piece->piece);
  const std::vector<std::pair<int32_t, int64_t>> in_turn = {{0, 0}, {2, 0}, {0, 1}, {2, 1}, {0, 2}, {0, 3}};
  EXPECT_EQ(written, in_turn);
  EXPECT_EQ(gone, in_turn);
}

TEST(KvAwayTest, ASlotThatIsCutKeepsItsFirstPiecesAndNothingElseOfItsLife) {
  KvAway away(1);
  away.SetReach(8);
  away.Computed(0, 1100);
  for (int piece = 0; piece < 3; ++piece) {
    ASSERT_TRUE(away.BeginWrite().has_value());
    away.EndWrite(true);
    ASSERT_TRUE(away.FreeNext().has_value());
  }
  ASSERT_EQ(away.BeginWrite()->piece, 3);
  away.Cut(0, 4);
  EXPECT_EQ(away.life(0), 0) << "nothing is lost";
  away.Cut(0, 2);
  EXPECT_EQ(away.life(0), 1);
  EXPECT_EQ(away.away(0), 2);
  EXPECT_EQ(away.written(0), 2);
  // Another sequence writes its third and fourth piece. The old fourth piece is not one of them.
  away.Computed(0, 1024);
  away.EndWrite(true);
  EXPECT_EQ(away.written(0), 2);
  EXPECT_EQ(away.BeginWrite(), (KvAway::Piece{.sequence = 0, .piece = 2, .life = 1}));
  away.EndWrite(true);
  EXPECT_EQ(away.written(0), 3);
}

TEST(KvAwayTest, WhatWasWrittenForASequenceThatEndedIsNotTheNextOnes) {
  KvAway away(1);
  away.SetReach(4);
  away.Computed(0, 256);
  ASSERT_TRUE(away.BeginWrite().has_value());
  away.Release(0);
  away.Computed(0, 256);
  away.EndWrite(true);
  EXPECT_EQ(away.FreeNext(), std::nullopt);
  ASSERT_TRUE(away.BeginWrite().has_value());
  away.EndWrite(false);
  EXPECT_EQ(away.FreeNext(), std::nullopt) << "the disk did not take it";
  ASSERT_TRUE(away.BeginWrite().has_value());
  away.EndWrite(true);
  EXPECT_TRUE(away.FreeNext().has_value());
}

TEST(KvAwayTest, ALowerReachKeepsWhatIsAway) {
  KvAway away(1);
  away.SetReach(3);
  away.Computed(0, 768);
  while (away.BeginWrite()) away.EndWrite(true);
  ASSERT_TRUE(away.FreeNext().has_value());
  ASSERT_TRUE(away.FreeNext().has_value());
  away.SetReach(1);
  EXPECT_EQ(away.FreeNext(), std::nullopt);
  EXPECT_EQ(away.most_away(), 2);
}

TEST(KvAwayTest, WhatWasAwayBeforeStaysAway) {
  KvAway away(2);
  away.SetReach(3);
  away.TakeOver(1, 1000, 2);
  EXPECT_EQ(away.away(1), 2);
  EXPECT_EQ(away.FreeNext(), std::nullopt) << "the third is not written";
  EXPECT_EQ(away.BeginWrite(), (KvAway::Piece{.sequence = 1, .piece = 2}));
  away.EndWrite(true);
  EXPECT_EQ(away.FreeNext(), (KvAway::Piece{.sequence = 1, .piece = 2}));
  away.Release(1);
  EXPECT_EQ(away.away(1), 0);
}

// Prompts and tokens of several sequences, as the orders of a plan bring them, until they have all
// the pages of a level between them: what the plan's arithmetic leaves in memory is always enough,
// where a piece is written by the end of the step after the one that filled it.
class Growth {
 public:
  explicit Growth(uint64_t seed) : random_(seed) {
    plan_.context = 300 + Below(6000);
    plan_.sequences = static_cast<int32_t>(1 + Below(6));
    plan_.batch = plan_.sequences;
    plan_.prefill_chunk = 1 + Below(600);
    plan_.chunks_per_sweep = 1;
    const int64_t full = (plan_.context + kPageTokens - 1) / kPageTokens * plan_.sequences;
    layer_pages_ = 1 + Below(full);
    device_.max_layer_pages = WorkingPages(plan_) + Below(full);
  }

  void Run() {
    const int64_t reach = PositionsAway(plan_, device_, layer_pages_);
    SCOPED_TRACE(absl::StrCat("context ", plan_.context, " x ", plan_.sequences, ", chunk ", plan_.prefill_chunk, ", ", layer_pages_,
                              " pages, of which in memory ", device_.max_layer_pages, ", reach ", reach));
    KvPages pages({.num_pages = layers_ * PagesInMemory(device_, layer_pages_), .num_layers = layers_, .max_sequences = plan_.sequences});
    KvAway away(plan_.sequences);
    away.SetReach(reach / kKvPiece);
    std::vector<int64_t> positions(static_cast<size_t>(plan_.sequences), 0);
    for (int step = 0; step < 400; ++step) {
      if (Below(40) == 0) {
        const int32_t ended = static_cast<int32_t>(Below(plan_.sequences));
        pages.Release(ended), away.Release(ended), positions[static_cast<size_t>(ended)] = 0;
      }
      const std::vector<int64_t> rows = Rows(positions);
      for (int32_t s = 0; s < plan_.sequences; ++s) {
        int64_t& at = positions[static_cast<size_t>(s)];
        at += rows[static_cast<size_t>(s)];
        while (!pages.Extend(s, at).ok()) {
          const auto gone = away.FreeNext();
          ASSERT_TRUE(gone.has_value()) << "step " << step << ": nothing can go, and sequence " << s << " needs pages for " << at;
          pages.ReleaseRange(gone->sequence, gone->piece * kKvPiece, (gone->piece + 1) * kKvPiece);
        }
      }
      while (away.BeginWrite()) away.EndWrite(true);  // what the step before filled
      for (int32_t s = 0; s < plan_.sequences; ++s) away.Computed(s, positions[static_cast<size_t>(s)]);
    }
  }

 private:
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  // A token of every sequence that has begun, and a chunk of one: as far as context and pages go.
  std::vector<int64_t> Rows(const std::vector<int64_t>& positions) {
    std::vector<int64_t> rows(positions.size(), 0);
    const auto pages = [&] {
      int64_t sum = 0;
      for (size_t s = 0; s < positions.size(); ++s) sum += (positions[s] + rows[s] + kPageTokens - 1) / kPageTokens;
      return sum;
    };
    const size_t chosen = static_cast<size_t>(Below(plan_.sequences));
    for (size_t s = 0; s < positions.size(); ++s) {
      const int64_t most = s == chosen && Below(3) > 0 ? plan_.prefill_chunk : positions[s] > 0 ? 1 : 0;
      rows[s] = std::min(most, plan_.context - positions[s]);
      while (rows[s] > 0 && pages() > layer_pages_) --rows[s];
    }
    return rows;
  }

  std::mt19937_64 random_;
  Plan plan_;
  PlanDevice device_;
  int64_t layer_pages_ = 0;
  const int64_t layers_ = 2;
};

TEST(KvAwayTest, WhatAPlanLeavesInMemoryIsAlwaysEnough) {
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(1500, 6000)); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Growth(seed).Run();
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace lime
