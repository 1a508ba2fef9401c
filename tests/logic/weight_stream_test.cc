#include "daemon/logic/weight_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

using State = WeightStream::State;
using Use = WeightStream::Use;

std::string Text(const std::vector<WeightStream::Load>& loads) {
  std::string text;
  for (const auto& load : loads) {
    absl::StrAppend(&text, text.empty() ? "" : " ", load.block, ".", load.piece, load.in_ring ? absl::StrCat("@", load.offset) : "!");
  }
  return text;
}

std::string Advance(WeightStream& stream) {
  std::vector<WeightStream::Load> loads;
  stream.Advance(loads);
  return Text(loads);
}

// Uses block() with everything loaded at once, and says what that was.
std::string UseBlock(WeightStream& stream, int64_t& loaded, bool* freed = nullptr) {
  const Use use = stream.CurrentUse();
  std::string text = absl::StrCat(stream.block(), use == Use::kResident ? " resident"
                                                  : use == Use::kStream ? " stream"
                                                  : use == Use::kFill   ? " fill"
                                                                        : " skip");
  std::vector<WeightStream::Load> loads;
  stream.Advance(loads);
  if (use == Use::kStream || use == Use::kFill) {
    for (bool more = true; more;) {
      while (stream.loads_under_way() > 0) stream.OnLoaded(loaded++);
      const WeightStream::Load* piece = stream.ReadyPiece();
      more = piece != nullptr && piece->block == stream.block();
      if (more) stream.ReleasePiece();
      stream.Advance(loads);
    }
  }
  while (stream.loads_under_way() > 0) stream.OnLoaded(loaded++);
  const bool gave = stream.FinishBlock();
  if (freed != nullptr) *freed = gave;
  return gave ? text + ", freed" : text;
}

TEST(WeightStreamTest, ReadsAheadAsFarAsTheRingHasRoomAndWrapsToTheNextStep) {
  // Blocks 0 (resident), 1 (two pieces of 4), 2 (one piece of 6); the ring holds 10.
  WeightStream stream({{{1}, true}, {{4, 4}, false}, {{6}, false}}, 10);
  EXPECT_EQ(Advance(stream), "1.0@0 1.1@4");
  EXPECT_EQ(stream.CurrentUse(), Use::kResident);
  EXPECT_FALSE(stream.FinishBlock());
  EXPECT_EQ(stream.ReadyPiece(), nullptr);
  stream.OnLoaded(0);
  ASSERT_NE(stream.ReadyPiece(), nullptr);
  EXPECT_EQ(stream.ReadyPiece()->piece, 0);
  stream.ReleasePiece();
  EXPECT_EQ(Advance(stream), "") << "6 fit neither behind 8 nor before 4";
  EXPECT_EQ(stream.ReadyPiece(), nullptr) << "the second piece is not loaded";
  stream.OnLoaded(1);
  stream.ReleasePiece();
  EXPECT_FALSE(stream.FinishBlock());
  EXPECT_EQ(Advance(stream), "2.0@0 1.0@6") << "the next step's first piece follows at once";
}

TEST(WeightStreamTest, ShedsAtOnceWhatIsNotDecidedAndElseAfterItsUse) {
  WeightStream stream({{{1}, true}, {{4}, false}, {{1}, true}, {{4}, false}}, 4);
  int64_t loaded = 0;
  EXPECT_EQ(Advance(stream), "1.0@0") << "the cursor waits at block 3, behind the resident 2";
  EXPECT_TRUE(stream.Shed(2)) << "its decision is taken back";
  EXPECT_EQ(stream.state(2), State::kStreamed);
  EXPECT_FALSE(stream.Shed(0)) << "its use comes before what is being loaded";
  EXPECT_EQ(stream.state(0), State::kShedding);
  EXPECT_EQ(UseBlock(stream, loaded), "0 resident, freed");
  EXPECT_EQ(UseBlock(stream, loaded), "1 stream");
  EXPECT_EQ(UseBlock(stream, loaded), "2 stream");
  EXPECT_EQ(UseBlock(stream, loaded), "3 stream");
  EXPECT_EQ(UseBlock(stream, loaded), "0 stream");
}

TEST(WeightStreamTest, FillsABlockInItsTurnAndKeepsIt) {
  WeightStream stream({{{4}, false}, {{4}, false}}, 4);
  int64_t loaded = 0;
  EXPECT_EQ(Advance(stream), "0.0@0");
  stream.Fill(1);
  stream.Fill(0);
  EXPECT_EQ(stream.state(0), State::kFillWanted) << "its use was decided as streamed";
  EXPECT_EQ(UseBlock(stream, loaded), "0 stream");
  EXPECT_EQ(UseBlock(stream, loaded), "1 fill");
  EXPECT_EQ(stream.state(1), State::kResident);
  EXPECT_EQ(UseBlock(stream, loaded), "0 fill");
  EXPECT_EQ(UseBlock(stream, loaded), "1 resident");
  EXPECT_EQ(Advance(stream), "") << "nothing streams any more";
}

TEST(WeightStreamTest, ShedWhileFillingGivesTheMemoryBackAfterTheUse) {
  WeightStream stream({{{4}, false}, {{4}, false}}, 4);
  int64_t loaded = 0;
  stream.Fill(1);
  EXPECT_EQ(Advance(stream), "0.0@0 1.0!");
  EXPECT_FALSE(stream.Shed(1));
  EXPECT_EQ(UseBlock(stream, loaded), "0 stream");
  EXPECT_EQ(UseBlock(stream, loaded), "1 fill, freed");
  stream.Fill(1);
  EXPECT_TRUE(stream.Shed(1)) << "filling was only wished for";
}

TEST(WeightStreamTest, ASkippedUseIsNotLoadedAndWhatWasLoadedIsDropped) {
  WeightStream stream({{{4}, false}, {{4, 4, 4}, false}}, 8);
  int64_t loaded = 0;
  stream.SkipNextUse(1);
  EXPECT_EQ(UseBlock(stream, loaded), "0 stream");
  EXPECT_EQ(UseBlock(stream, loaded), "1 skip");
  EXPECT_EQ(UseBlock(stream, loaded), "0 stream");
  EXPECT_EQ(stream.CurrentUse(), Use::kStream);
  stream.SkipNextUse(1);  // two of its pieces are in the ring
  EXPECT_EQ(UseBlock(stream, loaded), "1 skip");
  EXPECT_EQ(UseBlock(stream, loaded), "0 stream");
  EXPECT_EQ(UseBlock(stream, loaded), "1 stream");
}

TEST(WeightStreamTest, RestartBeginsAtTheFirstBlockWithAnEmptyRing) {
  WeightStream stream({{{4}, false}, {{4}, true}, {{4}, false}}, 8);
  int64_t loaded = 0;
  EXPECT_EQ(UseBlock(stream, loaded), "0 stream");
  stream.Shed(1);
  while (stream.loads_under_way() > 0) stream.OnLoaded(loaded++);
  std::vector<int32_t> freed;
  stream.Restart(freed);
  EXPECT_EQ(stream.block(), 0);
  EXPECT_EQ(Advance(stream), "0.0@0 1.0@4");
}

// A disk that ends loads after random delays, random shedding, filling and skipping: every use sees exactly its pieces in order, places in
// the ring never overlap while they are in use, and block memory is freed once for every fill.
TEST(WeightStreamTest, HoldsItsInvariantsUnderRandomEvents) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<int32_t>(random() % n); };
    const int blocks = 1 + below(7);
    std::vector<WeightStream::Block> specs;
    std::vector<int> owned(blocks, 0);  // whether the block has memory of its own
    Bytes largest = 1;
    for (int b = 0; b < blocks; ++b) {
      WeightStream::Block spec{.piece_bytes = {}, .resident = below(2) == 0};
      for (int p = 1 + below(4); p > 0; --p) spec.piece_bytes.push_back(1 + below(9));
      largest = std::max(largest, *std::ranges::max_element(spec.piece_bytes));
      owned[b] = spec.resident;
      specs.push_back(spec);
    }
    const Bytes ring = largest + below(20);
    WeightStream stream(specs, ring);
    std::vector<WeightStream::Load> loads;
    std::vector<WeightStream::Load> in_flight;
    std::map<int64_t, WeightStream::Load> live;  // in the ring
    size_t seen = 0;
    int skipped = -1;  // the block under way, where it is skipped: what is loaded for it is dropped in order
    const auto take_loads = [&] {
      for (auto it = live.begin();
           it != live.end() && it->second.block == skipped && !std::ranges::count(in_flight, it->first, &WeightStream::Load::id);)
        it = live.erase(it);
      stream.Advance(loads);
      for (; seen < loads.size(); ++seen) {
        const auto& load = loads[seen];
        in_flight.push_back(load);
        if (!load.in_ring) {
          EXPECT_TRUE(owned[load.block]) << "a fill goes to memory that is there";
          continue;
        }
        const Bytes end = load.offset + specs[load.block].piece_bytes[load.piece];
        EXPECT_LE(end, ring);
        for (const auto& [id, other] : live) {
          const Bytes other_end = other.offset + specs[other.block].piece_bytes[other.piece];
          EXPECT_TRUE(end <= other.offset || other_end <= load.offset) << "places overlap";
        }
        live[load.id] = load;
      }
    };
    const auto end_some_load = [&] {
      if (in_flight.empty()) return;
      const size_t i = below(in_flight.size());
      EXPECT_TRUE(in_flight[i].in_ring || owned[in_flight[i].block]) << "memory stays while a load goes into it";
      stream.OnLoaded(in_flight[i].id);
      in_flight.erase(in_flight.begin() + static_cast<int64_t>(i));
    };
    for (int use = 0; use < 60; ++use) {
      if (below(3) == 0) {
        const int b = below(blocks);
        if (below(2) == 0) {
          if (stream.Shed(b)) owned[b] = 0;
        } else if (stream.state(b) == State::kStreamed) {
          owned[b] = 1;
          stream.Fill(b);
        } else {
          stream.Fill(b);
        }
      }
      if (below(8) == 0) {
        const int b = below(blocks);
        stream.SkipNextUse(b);
      }
      if (stream.CurrentUse() == Use::kSkip) skipped = stream.block();
      take_loads();
      const int block = stream.block();
      EXPECT_EQ(block, use % blocks);
      const Use how = stream.CurrentUse();
      take_loads();
      if (how == Use::kResident) {
        EXPECT_TRUE(owned[block]);
      }
      if (how == Use::kStream || how == Use::kFill) {
        for (int p = 0; p < static_cast<int>(specs[block].piece_bytes.size()); ++p) {
          int waits = 0;
          while (stream.ReadyPiece() == nullptr) {
            ASSERT_LT(++waits, 10000) << "nothing comes";
            end_some_load();
            take_loads();
          }
          EXPECT_EQ(stream.ReadyPiece()->block, block);
          EXPECT_EQ(stream.ReadyPiece()->piece, p);
          EXPECT_EQ(stream.ReadyPiece()->in_ring, how == Use::kStream);
          live.erase(stream.ReadyPiece()->id);
          stream.ReleasePiece();
          take_loads();
        }
      }
      while (stream.DropsPending()) {
        end_some_load();
        take_loads();
      }
      take_loads();
      skipped = -1;
      if (stream.FinishBlock()) {
        EXPECT_TRUE(owned[block]);
        owned[block] = 0;
      }
    }
  }
}

TEST(ByteRingTest, GivesContiguousPlacesFirstInFirstOut) {
  ByteRing ring(10);
  EXPECT_EQ(ring.Allocate(11), std::nullopt);
  EXPECT_EQ(ring.Allocate(6), 0);
  EXPECT_EQ(ring.Allocate(5), std::nullopt);
  EXPECT_EQ(ring.Allocate(4), 6);
  EXPECT_EQ(ring.Allocate(1), std::nullopt) << "full";
  ring.ReleaseOldest();
  EXPECT_EQ(ring.Allocate(6), 0);
  EXPECT_EQ(ring.Allocate(1), std::nullopt) << "full, wrapped";
  ring.ReleaseOldest();
  ring.ReleaseOldest();
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(ring.Allocate(10), 0) << "an empty ring begins at 0";
}

}  // namespace
}  // namespace lime
