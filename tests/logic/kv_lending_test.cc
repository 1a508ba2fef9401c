// One device lends pieces of KV to another one: what each side refuses, and both over links that
// delay, with sequences that come and go.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/logic/hosting/kv_fetcher.h"
#include "daemon/logic/hosting/kv_host.h"
#include "daemon/logic/hosting/kv_lender.h"
#include "daemon/logic/hosting/kv_message.h"
#include "daemon/logic/pages/kv_away.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan.h"
#include "tests/cases.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- The owner's side

TEST(KvLenderTest, ALayerGoesInChunksThatAreNumberedOverAllOfThem) {
  KvLender lender({.layers = 2, .piece_bytes = 10, .chunk_bytes = 4});
  const std::vector<std::byte> bytes(10);
  const KvAway::Piece piece{.sequence = 3, .piece = 5, .life = 7};
  int64_t number = 0;
  for (int32_t layer = 0; layer < 2; ++layer) {
    const std::vector<KvChunk> chunks = lender.Begin(piece, layer, bytes);
    ASSERT_EQ(chunks.size(), 3u);
    Bytes offset = 0;
    for (const KvChunk& chunk : chunks) {
      EXPECT_EQ(chunk.number, number++);
      EXPECT_EQ(chunk.sequence, 3);
      EXPECT_EQ(chunk.life, 7);
      EXPECT_EQ(chunk.layer, layer);
      EXPECT_EQ(chunk.piece, 5);
      EXPECT_EQ(chunk.offset, offset);
      EXPECT_EQ(chunk.bytes.data(), bytes.data() + offset);
      offset += std::ssize(chunk.bytes);
    }
    EXPECT_EQ(offset, 10);
    EXPECT_TRUE(lender.under_way());
    ASSERT_TRUE(lender.OnStored(number - 1).ok());
    EXPECT_FALSE(lender.under_way());
  }
}

TEST(KvLenderTest, ALayerOfWholeChunksHasNoEmptyOne) {
  KvLender lender({.layers = 1, .piece_bytes = 8, .chunk_bytes = 4});
  const std::vector<std::byte> bytes(8);
  EXPECT_EQ(lender.Begin({}, 0, bytes).size(), 2u);
}

TEST(KvLenderTest, OnlyTheLastChunkUnderWayIsStored) {
  KvLender lender({.layers = 1, .piece_bytes = 8, .chunk_bytes = 4});
  const std::vector<std::byte> bytes(8);
  EXPECT_EQ(lender.OnStored(0).code(), absl::StatusCode::kInvalidArgument) << "nothing is under way";
  (void)lender.Begin({}, 0, bytes);
  for (const int64_t number : {-1, 0, 2}) {
    EXPECT_EQ(lender.OnStored(number).code(), absl::StatusCode::kInvalidArgument) << number;
    EXPECT_TRUE(lender.under_way());
  }
  EXPECT_TRUE(lender.OnStored(1).ok());
  EXPECT_FALSE(lender.OnStored(1).ok()) << "twice";
}

TEST(KvLenderDeathTest, OneLayerIsUnderWayAtATime) {
  KvLender lender({.layers = 1, .piece_bytes = 4});
  const std::vector<std::byte> bytes(4);
  (void)lender.Begin({}, 0, bytes);
  EXPECT_DEATH((void)lender.Begin({}, 0, bytes), "chunk 0 is not stored yet");
}

// ---- The host's side

// Two layers of 8 bytes, which come in chunks of 4.
class KvHostTest : public ::testing::Test {
 protected:
  static constexpr KvHost::Shape kShape{.layers = 2, .sequences = 3, .pieces_per_sequence = 4, .piece_bytes = 8, .places = 4};

  KvChunk Chunk(int32_t sequence, int64_t life, int64_t piece, int32_t layer, Bytes offset) const {
    return {.number = number_,
            .sequence = sequence,
            .life = life,
            .layer = layer,
            .piece = piece,
            .offset = offset,
            .bytes = std::span(bytes_).first(4)};
  }

  // InvalidArgument with this sentence, and what comes next is taken as if nothing had come.
  void ExpectRefused(const KvChunk& chunk, const std::string& sentence) {
    const int64_t free_places = host_.free_places();
    const auto placed = host_.OnChunk(chunk);
    EXPECT_EQ(placed.status().code(), absl::StatusCode::kInvalidArgument) << sentence;
    EXPECT_THAT(std::string(placed.status().message()), HasSubstr(sentence));
    EXPECT_EQ(host_.free_places(), free_places);
  }

  KvHost::Placed Store(const KvChunk& chunk) {
    const auto placed = host_.OnChunk(chunk);
    EXPECT_TRUE(placed.ok()) << placed.status();
    if (!placed.ok()) return {};
    ++number_;
    return *placed;
  }

  void StoreLayer(int32_t sequence, int64_t life, int64_t piece, int32_t layer) {
    EXPECT_FALSE(Store(Chunk(sequence, life, piece, layer, 0)).ends_layer);
    EXPECT_TRUE(Store(Chunk(sequence, life, piece, layer, 4)).ends_layer);
  }
  void StorePiece(int32_t sequence, int64_t life, int64_t piece) {
    for (int32_t layer = 0; layer < 2; ++layer) StoreLayer(sequence, life, piece, layer);
  }

  KvHost host_{kShape};
  std::vector<std::byte> bytes_ = std::vector<std::byte>(16);
  int64_t number_ = 0;
};

TEST_F(KvHostTest, AChunkGoesWhereItsLayerOfItsSlotIs) {
  std::vector<Bytes> offsets;
  for (const int64_t piece : {0, 1}) {
    for (const int32_t layer : {0, 1}) {
      for (const Bytes offset : {0, 4}) {
        EXPECT_EQ(host_.stored(1), piece);
        const KvHost::Placed placed = Store(Chunk(1, 0, piece, layer, offset));
        ASSERT_TRUE(placed.offset.has_value());
        offsets.push_back(*placed.offset);
        EXPECT_EQ(placed.ends_layer, offset == 4);
      }
    }
  }
  EXPECT_THAT(offsets, ElementsAre(0, 4, 8, 12, 16, 20, 24, 28));
  EXPECT_EQ(host_.stored(1), 2);
  EXPECT_EQ(host_.free_places(), 2);
  EXPECT_THAT(*host_.Pieces(1, 0, 0, 2), ElementsAre(0, 16));
  EXPECT_THAT(*host_.Pieces(1, 0, 1, 2), ElementsAre(8, 24));
  EXPECT_THAT(*host_.Pieces(1, 0, 1, 1), ElementsAre(8));
  EXPECT_THAT(*host_.Pieces(1, 0, 1, 0), IsEmpty());
}

TEST_F(KvHostTest, AChunkOutOfBoundsIsRefused) {
  const auto refused = [&](const std::string& sentence, auto change) {
    KvChunk chunk = Chunk(0, 0, 0, 0, 0);
    change(chunk);
    ExpectRefused(chunk, sentence);
  };
  refused("chunk 1 arrived, expected chunk 0", [](KvChunk& c) { c.number = 1; });
  refused("chunk -1 arrived, expected chunk 0", [](KvChunk& c) { c.number = -1; });
  refused("sequence -1 is outside the plan's 3", [](KvChunk& c) { c.sequence = -1; });
  refused("sequence 3 is outside the plan's 3", [](KvChunk& c) { c.sequence = 3; });
  refused("life -1", [](KvChunk& c) { c.life = -1; });
  refused("layer -1 is outside the device's 2", [](KvChunk& c) { c.layer = -1; });
  refused("layer 2 is outside the device's 2", [](KvChunk& c) { c.layer = 2; });
  refused("piece -1 is outside a sequence of 4", [](KvChunk& c) { c.piece = -1; });
  refused("piece 4 is outside a sequence of 4", [](KvChunk& c) { c.piece = 4; });
  refused("4 bytes at offset -1 do not fit in a piece of 8", [](KvChunk& c) { c.offset = -1; });
  refused("4 bytes at offset 5 do not fit in a piece of 8", [](KvChunk& c) { c.offset = 5; });
  refused("do not fit in a piece of 8", [](KvChunk& c) { c.offset = std::numeric_limits<int64_t>::max(); });
  refused("0 bytes at offset 0 do not fit in a piece of 8", [](KvChunk& c) { c.bytes = {}; });
  refused("16 bytes at offset 0 do not fit in a piece of 8", [&](KvChunk& c) { c.bytes = bytes_; });
  StorePiece(0, 0, 0);
  KvChunk again = Chunk(0, 0, 1, 0, 0);
  --again.number;
  ExpectRefused(again, "chunk 3 arrived, expected chunk 4");
}

TEST_F(KvHostTest, AChunkThatDoesNotGoOnWhatCameIsRefused) {
  ExpectRefused(Chunk(0, 0, 0, 0, 4), "does not continue");
  ExpectRefused(Chunk(0, 0, 0, 1, 0), "does not continue");
  (void)Store(Chunk(0, 0, 0, 0, 0));
  ExpectRefused(Chunk(0, 0, 0, 0, 0), "does not continue");
  ExpectRefused(Chunk(0, 0, 0, 0, 2), "does not continue");
  ExpectRefused(Chunk(0, 0, 0, 1, 4), "does not continue");
  ExpectRefused(Chunk(0, 0, 1, 0, 4), "does not continue");
  ExpectRefused(Chunk(0, 1, 0, 0, 4), "does not continue");
  ExpectRefused(Chunk(1, 0, 0, 0, 4), "does not continue");
  ExpectRefused(Chunk(1, 0, 0, 0, 0), "does not continue");
  ExpectRefused(Chunk(0, 1, 0, 0, 0), "does not continue");
  (void)Store(Chunk(0, 0, 0, 0, 4));
  ExpectRefused(Chunk(0, 0, 0, 0, 0), "does not continue");
  ExpectRefused(Chunk(0, 0, 1, 0, 0), "does not continue");
  ExpectRefused(Chunk(1, 0, 0, 0, 0), "does not continue");
  StoreLayer(0, 0, 0, 1);
  EXPECT_EQ(host_.stored(0), 1);
}

TEST_F(KvHostTest, APieceThatIsNotTheNextOfItsSequenceIsRefused) {
  ExpectRefused(Chunk(0, 0, 1, 0, 0), "piece 1 of sequence 0 arrived, expected piece 0");
  StorePiece(0, 0, 0);
  ExpectRefused(Chunk(0, 0, 0, 0, 0), "piece 0 of sequence 0 arrived, expected piece 1");
  ExpectRefused(Chunk(0, 0, 2, 0, 0), "piece 2 of sequence 0 arrived, expected piece 1");
  ExpectRefused(Chunk(0, 1, 1, 0, 0), "piece 1 of sequence 0 arrived, expected piece 0");
  EXPECT_EQ(host_.stored(0), 1) << "what is refused ends no life";
  StorePiece(1, 0, 0);
  StorePiece(0, 0, 1);
}

TEST_F(KvHostTest, ALifeBeforeOneThatHasBegunIsRefused) {
  StorePiece(0, 5, 0);
  ExpectRefused(Chunk(0, 4, 0, 0, 0), "life 4 of sequence 0 arrived, but life 5 has begun");
  ASSERT_TRUE(host_.OnFree(0, 5).ok());
  ExpectRefused(Chunk(0, 4, 0, 0, 0), "life 4 of sequence 0 arrived, but life 5 has begun");
  StorePiece(1, 4, 0);
}

TEST_F(KvHostTest, ALaterLifeFreesWhatTheOneBeforeHad) {
  StorePiece(0, 0, 0);
  StorePiece(0, 0, 1);
  (void)Store(Chunk(0, 2, 0, 0, 0));
  EXPECT_EQ(host_.stored(0), 0);
  EXPECT_EQ(host_.free_places(), 3);
  EXPECT_EQ(host_.Pieces(0, 0, 0, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  (void)Store(Chunk(0, 2, 0, 0, 4));
  StorePiece(0, 3, 0);  // and of a piece that was on its way
  EXPECT_EQ(host_.stored(0), 1);
  EXPECT_EQ(host_.free_places(), 3);
}

TEST_F(KvHostTest, FreeRemovesAllLivesUpToOne) {
  StorePiece(0, 3, 0);
  StorePiece(1, 3, 0);
  ASSERT_TRUE(host_.OnFree(0, 2).ok());
  EXPECT_EQ(host_.stored(0), 1) << "a life before";
  ASSERT_TRUE(host_.OnFree(0, 3).ok());
  EXPECT_EQ(host_.stored(0), 0);
  EXPECT_EQ(host_.stored(1), 1);
  EXPECT_EQ(host_.free_places(), 3);
  ASSERT_TRUE(host_.OnFree(0, 3).ok());
  EXPECT_EQ(host_.free_places(), 3) << "twice";
  ASSERT_TRUE(host_.OnFree(1, std::numeric_limits<int64_t>::max()).ok());
  EXPECT_EQ(host_.free_places(), 4);
  EXPECT_EQ(host_.OnFree(-1, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(host_.OnFree(3, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(host_.OnFree(0, -1).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(KvHostTest, ChunksThatAFreeHasOvertakenAreDroppedAndAnswered) {
  StorePiece(0, 0, 0);
  StoreLayer(0, 0, 1, 0);
  EXPECT_TRUE(Store(Chunk(0, 0, 1, 1, 0)).offset.has_value());
  EXPECT_EQ(host_.free_places(), 2);
  ASSERT_TRUE(host_.OnFree(0, 0).ok());
  EXPECT_EQ(host_.free_places(), 4) << "what is partly there gives its slot back too";
  const KvHost::Placed rest = Store(Chunk(0, 0, 1, 1, 4));
  EXPECT_EQ(rest.offset, std::nullopt);
  EXPECT_TRUE(rest.ends_layer);
  const KvHost::Placed next = Store(Chunk(0, 0, 2, 0, 0));  // all of whose chunks it has overtaken
  EXPECT_EQ(next.offset, std::nullopt);
  EXPECT_FALSE(next.ends_layer);
  EXPECT_TRUE(Store(Chunk(0, 0, 2, 0, 4)).ends_layer);
  StoreLayer(0, 0, 2, 1);
  EXPECT_EQ(host_.stored(0), 0);
  EXPECT_EQ(host_.free_places(), 4);
  StorePiece(0, 1, 0);
  EXPECT_EQ(host_.stored(0), 1);
}

TEST_F(KvHostTest, APieceOfAnEndedSequenceMakesWayForAnotherOneBetweenTwoLayers) {
  StoreLayer(0, 0, 0, 0);
  ExpectRefused(Chunk(1, 0, 0, 0, 0), "does not continue");
  ASSERT_TRUE(host_.OnFree(0, 0).ok());
  StorePiece(1, 0, 0);
  (void)Store(Chunk(2, 0, 0, 0, 0));
  ASSERT_TRUE(host_.OnFree(2, 0).ok());
  ExpectRefused(Chunk(1, 0, 1, 0, 0), "does not continue");  // within a layer
  (void)Store(Chunk(2, 0, 0, 0, 4));
  StorePiece(1, 0, 1);
  EXPECT_EQ(host_.free_places(), 2);
}

TEST_F(KvHostTest, WithoutAFreeSlotAPieceIsRefusedUntilThereIsOne) {
  for (int64_t piece = 0; piece < 4; ++piece) StorePiece(0, 0, piece);
  EXPECT_EQ(host_.free_places(), 0);
  EXPECT_EQ(host_.OnChunk(Chunk(1, 0, 0, 0, 0)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(host_.stored(0), 4);
  ASSERT_TRUE(host_.OnFree(0, 0).ok());
  StorePiece(1, 0, 0);
  for (int64_t piece = 0; piece < 3; ++piece) StorePiece(0, 1, piece);
  EXPECT_EQ(host_.free_places(), 0);
  StorePiece(0, 2, 0);  // what its own life before had is enough
  EXPECT_EQ(host_.free_places(), 2);
}

TEST_F(KvHostTest, WhatWasThereBeforeGoesOnInTheFirstLife) {
  ASSERT_TRUE(host_.TakeOver(1, 2).ok());
  ASSERT_TRUE(host_.TakeOver(0, 0).ok());
  EXPECT_EQ(host_.TakeOver(2, 3).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(host_.free_places(), 2);
  ASSERT_TRUE(host_.Pieces(1, 0, 1, 2).ok());
  ExpectRefused(Chunk(1, 0, 1, 0, 0), "arrived, expected piece 2");
  StorePiece(1, 0, 2);
  StorePiece(0, 0, 0);
  EXPECT_EQ(host_.stored(1), 3);
  StorePiece(1, 1, 0);
  EXPECT_EQ(host_.stored(1), 1) << "of the next sequence";
  EXPECT_EQ(host_.free_places(), 2);
}

TEST_F(KvHostTest, OnlyWholePiecesOfALifeAreFound) {
  StorePiece(0, 2, 0);
  StoreLayer(0, 2, 1, 0);
  EXPECT_TRUE(host_.Pieces(0, 2, 0, 1).ok());
  EXPECT_EQ(host_.Pieces(0, 2, 0, 2).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(host_.Pieces(0, 1, 0, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(host_.Pieces(0, 3, 0, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(host_.Pieces(1, 2, 0, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(host_.Pieces(-1, 2, 0, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(host_.Pieces(3, 2, 0, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(host_.Pieces(0, -1, 0, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(host_.Pieces(0, 2, -1, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(host_.Pieces(0, 2, 2, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(host_.Pieces(0, 2, 0, -1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(host_.Pieces(0, 2, 0, 5).status().code(), absl::StatusCode::kInvalidArgument);
}

// ---- Both

constexpr Bytes kWord = 8;

// What the owner computes for one layer of a piece.
std::vector<std::byte> Content(int64_t life, int32_t sequence, int64_t layer, int64_t piece, Bytes bytes) {
  std::vector<std::byte> content(static_cast<size_t>(bytes));
  uint64_t word = static_cast<uint64_t>(((life * 64 + sequence) * 64 + layer) * 64 + piece + 1) * 0x9e3779b97f4a7c15u;
  for (Bytes at = 0; at < bytes; at += kWord, ++word) std::memcpy(content.data() + at, &word, static_cast<size_t>(kWord));
  return content;
}

// Messages from one device to another. Chunks keep their order, and so do other messages, which may
// overtake chunks; no chunk overtakes what was sent before it.
class DelayingLink {
 public:
  void Send(const KvMessage& message, int64_t now, int64_t delay) {
    const bool low = std::holds_alternative<KvChunk>(message) || std::holds_alternative<KvFetched>(message);
    int64_t at = std::max(now + delay, others_until_);
    if (low) at = std::max(at, chunks_until_);
    (low ? chunks_until_ : others_until_) = at;
    under_way_.emplace(std::pair(at, sent_++), Encode(message));
  }

  std::optional<std::vector<std::byte>> Receive(int64_t now) {
    if (under_way_.empty() || under_way_.begin()->first.first > now) return std::nullopt;
    return std::move(under_way_.extract(under_way_.begin()).mapped());
  }

  bool empty() const { return under_way_.empty(); }

 private:
  std::map<std::pair<int64_t, int64_t>, std::vector<std::byte>> under_way_;  // by when it arrives, then as it was sent
  int64_t chunks_until_ = 0, others_until_ = 0, sent_ = 0;
};

// An owner whose sequences need more pages than it has, and a host with just as many slots as reach
// allows.
class Lending {
 public:
  explicit Lending(uint64_t seed) : random_(seed) {}

  void Run() {
    for (now_ = 0; !IsOver(); ++now_) {
      ASSERT_LT(now_, 20000) << "something waits for ever";
      Act();
      if (testing::Test::HasFatalFailure()) return;
      for (;;) {
        LendNext();
        FetchNext();
        Check();
        if (testing::Test::HasFatalFailure()) return;
        if (const auto at_host = to_host_.Receive(now_)) {
          OnHost(*ParseKvMessage(*at_host));
        } else if (const auto at_owner = to_owner_.Receive(now_)) {
          OnOwner(*ParseKvMessage(*at_owner));
        } else {
          break;
        }
      }
    }
    EXPECT_EQ(host_.free_places(), host_shape_.places);
    EXPECT_FALSE(lender_.under_way());
    EXPECT_FALSE(lending_.has_value());
    EXPECT_FALSE(away_.HasToWrite());
    EXPECT_THAT(asked_, IsEmpty()) << "queries without an answer";
    EXPECT_THAT(tags_, IsEmpty());
    EXPECT_FALSE(fetcher_.under_way());
  }

  int64_t evicted() const { return evicted_; }
  int64_t dropped() const { return dropped_; }
  int64_t answered() const { return answered_; }
  int64_t used() const { return used_; }
  int64_t waits() const { return waits_; }
  bool slots_ran_full() const { return places_ran_full_; }

 private:
  struct OwnerSequence {
    bool there = false;
    int64_t target = 0, positions = 0;
    std::vector<bool> in_memory;  // full pieces
  };
  struct Tag {  // of a slot of the host
    int32_t sequence = 0;
    int64_t life = 0, piece = 0;
    friend bool operator==(const Tag&, const Tag&) = default;
  };

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  int64_t Delay() { return Below(8) == 0 ? Below(3 * slowness_) : Below(slowness_); }

  bool IsOver() const {
    return to_admit_ == 0 && std::ranges::none_of(owned_, &OwnerSequence::there) && !lending_ && to_host_.empty() && to_owner_.empty();
  }

  // ---- The owner

  void Act() {
    const int32_t s = static_cast<int32_t>(Below(sequences_));
    OwnerSequence& sequence = owned_[static_cast<size_t>(s)];
    if (Below(16) == 0) away_.SetReach(Below(3) == 0 ? Below(most_reach_ + 1) : most_reach_);
    if (!sequence.there) {
      if (to_admit_ == 0) return;
      --to_admit_;
      sequence = {.there = true, .target = pieces_ * kKvPiece - Below(Below(2) == 0 ? 20 : pieces_ * kKvPiece)};
    } else if (sequence.positions == sequence.target || Below(60) == 0) {
      EndSequence(s);
    } else if (Below(5) == 0) {
      Ask();
    } else if (Below(3) == 0) {
      UseLayer();
    } else {
      Grow(s, 1 + Below(kMostGrowth));
    }
  }

  int64_t PagesHeld() const {
    int64_t pages = 0;
    for (size_t s = 0; s < owned_.size(); ++s)
      pages += (owned_[s].positions + 15) / 16 - std::ranges::count(owned_[s].in_memory, false) * kKvPiece / 16;
    return pages;
  }

  // Not now where the pages for it are not there, and nothing can go yet.
  void Grow(int32_t s, int64_t positions) {
    OwnerSequence& sequence = owned_[static_cast<size_t>(s)];
    const int64_t end = std::min(sequence.target, sequence.positions + positions);
    const int64_t needed = (end + 15) / 16 - (sequence.positions + 15) / 16;
    while (PagesHeld() + needed > pages_in_memory_) {
      const auto gone = away_.FreeNext();
      if (!gone) return;
      Evict(*gone);
    }
    sequence.positions = end;
    sequence.in_memory.resize(static_cast<size_t>(end / kKvPiece), true);
    away_.Computed(s, end);
  }

  void Evict(const KvAway::Piece& gone) {
    OwnerSequence& sequence = owned_[static_cast<size_t>(gone.sequence)];
    ASSERT_TRUE(sequence.there && sequence.in_memory.at(static_cast<size_t>(gone.piece)));
    sequence.in_memory[static_cast<size_t>(gone.piece)] = false;
    ++evicted_;
  }

  void EndSequence(int32_t s) {
    to_host_.Send(KvFree{.sequence = s, .life = away_.life(s)}, now_, Delay());
    away_.Release(s);
    owned_[static_cast<size_t>(s)] = {};
  }

  // For all that is away.
  void Ask() {
    KvQuery query{.number = next_query_, .layer = static_cast<int32_t>(Below(layers_))};
    std::vector<std::byte> expected;
    for (int32_t s = 0; s < sequences_; ++s) {
      const int64_t pieces = away_.away(s);
      if (pieces == 0) continue;
      query.sequences.push_back(
          {.sequence = s, .life = away_.life(s), .pieces = static_cast<int32_t>(pieces), .positions = {static_cast<int32_t>(s)}});
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const std::vector<std::byte> content = Content(away_.life(s), s, query.layer, piece, piece_bytes_);
        expected.insert(expected.end(), content.begin(), content.end());
      }
    }
    if (query.sequences.empty()) return;
    const std::vector<std::byte> queries(4 * query.sequences.size());
    query.queries = queries;
    asked_[next_query_++] = std::move(expected);
    to_host_.Send(query, now_, Delay());
  }

  // ---- What comes back

  // The next layer in order, or one that cannot wait for the others: what is there of it is what
  // was computed. Where not all of it is, and has room, it is waited for.
  void UseLayer() {
    if (awaited_) return;
    using_ = Below(4) == 0 ? static_cast<int32_t>(Below(layers_)) : (using_ + 1) % layers_;
    if (Below(4) == 0) fetcher_.SetLayers(Below(layers_ + 1));
    fetcher_.SetInUse(std::nullopt);
    fetcher_.SetNext(using_);
    Follow();
    if (CheckRoom(using_)) {
      fetcher_.SetInUse(using_);
    } else if (MostPieces() + kKvFetchesUnderWay <= room_shape_.places) {
      awaited_ = using_;
      fetcher_.SetAwaited(awaited_);
      ++waits_;
    }
  }

  int64_t MostPieces() const {
    int64_t pieces = 0;
    for (int32_t s = 0; s < sequences_; ++s) pieces += away_.away(s);
    return pieces;
  }

  void Follow() {
    for (int32_t s = 0; s < sequences_; ++s) fetcher_.SetSequence(s, away_.life(s), 0, away_.away(s));
  }

  // Whether all of a layer is there; and all that is, is right.
  bool CheckRoom(int32_t layer) {
    bool all = true;
    for (int32_t s = 0; s < sequences_; ++s) {
      for (int64_t piece = 0; piece < away_.away(s); ++piece) {
        const auto at = fetcher_.Find(layer, s, away_.life(s), piece);
        EXPECT_EQ(at.has_value(), fetcher_.Missing(layer, s, away_.life(s), piece, piece + 1) == 0);
        all = all && at;
        if (!at) continue;
        const std::vector<std::byte> content = Content(away_.life(s), s, layer, piece, piece_bytes_);
        EXPECT_EQ(std::memcmp(room_.data() + *at, content.data(), content.size()), 0) << "sequence " << s << " piece " << piece;
        ++used_;
      }
    }
    return all;
  }

  void FetchNext() {
    Follow();
    while (const auto fetch = fetcher_.Begin()) to_host_.Send(*fetch, now_, Delay());
    if (!awaited_ || !CheckRoom(*awaited_)) return;
    awaited_.reset();
    fetcher_.SetAwaited(std::nullopt);
  }

  void SendBack(const KvFetch& fetch) {
    const auto offsets = host_.Pieces(fetch.sequence, fetch.life, fetch.layer, fetch.piece + 1);
    ASSERT_TRUE(offsets.ok()) << offsets.status();
    const std::span<const std::byte> bytes(memory_.data() + offsets->back(), static_cast<size_t>(piece_bytes_));
    for (Bytes offset = 0; offset < piece_bytes_; offset += kWord)
      to_owner_.Send(KvFetched{.number = fetch.number, .offset = offset, .bytes = bytes.subspan(static_cast<size_t>(offset), kWord)}, now_,
                     Delay());
  }

  void OnFetched(const KvFetched& fetched) {
    const auto placed = fetcher_.On(fetched);
    ASSERT_TRUE(placed.ok()) << placed.status();
    ASSERT_LE(placed->offset + std::ssize(fetched.bytes), std::ssize(room_));
    std::ranges::copy(fetched.bytes, room_.begin() + placed->offset);
  }

  void LendNext() {
    if (lender_.under_way()) return;
    if (!lending_) {
      lending_ = away_.BeginWrite();
      if (!lending_) return;
      next_layer_ = 0;
    }
    // Of a sequence that has ended the pages are gone: what goes is anything.
    const bool alive = away_.life(lending_->sequence) == lending_->life;
    const std::vector<std::byte> bytes = alive ? Content(lending_->life, lending_->sequence, next_layer_, lending_->piece, piece_bytes_)
                                               : std::vector<std::byte>(static_cast<size_t>(piece_bytes_));
    for (const KvChunk& chunk : lender_.Begin(*lending_, next_layer_, bytes)) to_host_.Send(chunk, now_, Delay());
    ++next_layer_;
  }

  void OnOwner(const KvMessage& message) {
    if (const auto* records = std::get_if<KvRecords>(&message)) {
      ASSERT_TRUE(asked_.contains(records->number));
      EXPECT_TRUE(std::ranges::equal(records->records, asked_[records->number])) << "query " << records->number;
      asked_.erase(records->number);
      ++answered_;
      return;
    }
    if (const auto* fetched = std::get_if<KvFetched>(&message)) return OnFetched(*fetched);
    const absl::Status stored = lender_.OnStored(std::get<KvStored>(message).number);
    ASSERT_TRUE(stored.ok()) << stored;
    const bool abandoned = !goes_on_ && away_.life(lending_->sequence) != lending_->life;
    if (next_layer_ < layers_ && !abandoned) return;
    away_.EndWrite(!abandoned);
    lending_.reset();
  }

  // ---- The host

  void OnHost(const KvMessage& message) {
    if (const auto* chunk = std::get_if<KvChunk>(&message)) {
      Place(*chunk);
    } else if (const auto* free = std::get_if<KvFree>(&message)) {
      ASSERT_TRUE(host_.OnFree(free->sequence, free->life).ok());
      EndLives(free->sequence, free->life);
    } else if (const auto* fetch = std::get_if<KvFetch>(&message)) {
      SendBack(*fetch);
    } else {
      Answer(std::get<KvQuery>(message));
    }
  }

  void Place(const KvChunk& chunk) {
    const auto placed = host_.OnChunk(chunk);
    ASSERT_TRUE(placed.ok()) << placed.status();
    EXPECT_EQ(placed->offset.has_value(), chunk.life > ended_[static_cast<size_t>(chunk.sequence)]);
    if (placed->offset) {
      EndLives(chunk.sequence, chunk.life - 1);
      ASSERT_TRUE(*placed->offset >= 0 && *placed->offset + std::ssize(chunk.bytes) <= std::ssize(memory_));
      const int64_t in_layer = *placed->offset % piece_bytes_, layer = *placed->offset / piece_bytes_ % layers_;
      EXPECT_EQ(in_layer, chunk.offset);
      EXPECT_EQ(layer, chunk.layer);
      const Tag tag{.sequence = chunk.sequence, .life = chunk.life, .piece = chunk.piece};
      const auto [slot, fresh] = tags_.emplace(*placed->offset / piece_bytes_ / layers_, tag);
      ASSERT_TRUE(slot->second == tag) << "slot " << slot->first << " has a piece";
      ASSERT_EQ(fresh, chunk.layer == 0 && chunk.offset == 0) << "slot " << slot->first;
      std::ranges::copy(chunk.bytes, memory_.begin() + *placed->offset);
    } else {
      ++dropped_;
    }
    if (placed->ends_layer) to_owner_.Send(KvStored{.number = chunk.number}, now_, Delay());
  }

  void EndLives(int32_t sequence, int64_t life) {
    int64_t& ended = ended_[static_cast<size_t>(sequence)];
    ended = std::max(ended, life);
    std::erase_if(tags_, [&](const auto& tag) { return tag.second.sequence == sequence && tag.second.life <= ended; });
  }

  void Answer(const KvQuery& query) {
    std::vector<std::byte> found;
    for (const KvQuery::Sequence& sequence : query.sequences) {
      const auto offsets = host_.Pieces(sequence.sequence, sequence.life, query.layer, sequence.pieces);
      ASSERT_TRUE(offsets.ok()) << offsets.status();
      for (const Bytes offset : *offsets) found.insert(found.end(), memory_.begin() + offset, memory_.begin() + offset + piece_bytes_);
    }
    to_owner_.Send(KvRecords{.number = query.number, .records = found}, now_, Delay());
  }

  // ---- What always holds

  void Check() {
    if (host_.free_places() == 0) places_ran_full_ = true;
    ASSERT_LE(PagesHeld(), pages_in_memory_);
    ASSERT_EQ(host_.free_places() + std::ssize(tags_), host_shape_.places);
    for (int32_t s = 0; s < sequences_; ++s) CheckSequence(s);
  }

  void CheckSequence(int32_t s) const {
    const OwnerSequence& sequence = owned_[static_cast<size_t>(s)];
    const int64_t stored = host_.stored(s);
    for (size_t piece = 0; piece < sequence.in_memory.size(); ++piece) {
      if (sequence.in_memory[piece]) continue;
      ASSERT_LT(static_cast<int64_t>(piece), stored) << "nobody has piece " << piece << " of sequence " << s;
      for (int32_t layer = 0; layer < layers_; ++layer) CheckContent(s, static_cast<int64_t>(piece), layer);
    }
    if (stored == 0) return;
    const auto offsets = host_.Pieces(s, ended_[static_cast<size_t>(s)] + 1, 0, stored);
    ASSERT_TRUE(offsets.ok()) << offsets.status();
    for (int64_t piece = 0; piece < stored; ++piece) {
      const auto tag = tags_.find((*offsets)[static_cast<size_t>(piece)] / piece_bytes_ / layers_);
      ASSERT_TRUE(tag != tags_.end());
      ASSERT_TRUE(tag->second == (Tag{.sequence = s, .life = ended_[static_cast<size_t>(s)] + 1, .piece = piece}));
    }
  }

  void CheckContent(int32_t s, int64_t piece, int32_t layer) const {
    const auto offsets = host_.Pieces(s, away_.life(s), layer, piece + 1);
    ASSERT_TRUE(offsets.ok()) << offsets.status();
    const std::vector<std::byte> content = Content(away_.life(s), s, layer, piece, piece_bytes_);
    ASSERT_EQ(std::memcmp(memory_.data() + offsets->back(), content.data(), content.size()), 0)
        << "sequence " << s << " piece " << piece << " layer " << layer;
  }

  static constexpr int64_t kMostGrowth = 320;  // positions, at a time

  std::mt19937_64 random_;
  const int32_t sequences_ = static_cast<int32_t>(1 + Below(4));
  const int64_t pieces_ = 1 + Below(8);  // of a sequence
  const int64_t most_reach_ = 1 + Below(pieces_);
  const int32_t layers_ = static_cast<int32_t>(1 + Below(3));
  const Bytes piece_bytes_ = kWord * (1 + Below(3));
  const int64_t slowness_ = 1 + Below(12);
  const bool goes_on_ = Below(2) == 0;  // with the layers of a piece whose sequence has ended
  // Enough once all that may go has gone.
  const int64_t pages_in_memory_ = sequences_ * (pieces_ - most_reach_ + 1) * kKvPiece / 16 + kMostGrowth / 16 + Below(20);
  const KvHost::Shape host_shape_{.layers = layers_,
                                  .sequences = sequences_,
                                  .pieces_per_sequence = pieces_,
                                  .piece_bytes = piece_bytes_,
                                  .places = sequences_ * most_reach_};

  int64_t now_ = 0;
  int64_t to_admit_ = 1 + Below(24);
  std::vector<OwnerSequence> owned_ = std::vector<OwnerSequence>(static_cast<size_t>(sequences_));
  KvAway away_{sequences_};
  KvLender lender_{{.layers = layers_, .piece_bytes = piece_bytes_, .chunk_bytes = 1 + Below(piece_bytes_ + 4)}};
  std::optional<KvAway::Piece> lending_;
  int32_t next_layer_ = 0;  // of it
  int64_t next_query_ = 0;
  std::map<int64_t, std::vector<std::byte>> asked_;  // what is to be found

  const KvFetcher::Shape room_shape_{.layers = layers_,
                                     .sequences = sequences_,
                                     .piece_bytes = piece_bytes_,
                                     .places = 1 + Below(layers_ * sequences_ * most_reach_ + kKvFetchesUnderWay)};
  KvFetcher fetcher_{room_shape_};
  std::vector<std::byte> room_ = std::vector<std::byte>(static_cast<size_t>(room_shape_.bytes()));
  int32_t using_ = 0;
  std::optional<int32_t> awaited_;

  DelayingLink to_host_, to_owner_;

  KvHost host_{host_shape_};
  std::vector<std::byte> memory_ = std::vector<std::byte>(static_cast<size_t>(host_shape_.bytes()));
  std::map<int64_t, Tag> tags_;                                                             // by slot
  std::vector<int64_t> ended_ = std::vector<int64_t>(static_cast<size_t>(sequences_), -1);  // lives, as the host knows

  int64_t evicted_ = 0, dropped_ = 0, answered_ = 0, used_ = 0, waits_ = 0;
  bool places_ran_full_ = false;
};

TEST(KvLendingTest, WhatIsFullIsInMemoryOrKeptAsItWasWhateverTheLinksDo) {
  int64_t evicted = 0, dropped = 0, answered = 0, ran_full = 0, used = 0, waits = 0;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(3000, 12000)); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Lending lending(seed);
    lending.Run();
    if (testing::Test::HasFailure()) return;
    evicted += lending.evicted(), dropped += lending.dropped(), answered += lending.answered();
    ran_full += lending.slots_ran_full(), used += lending.used(), waits += lending.waits();
  }
  if (!ManyCases()) return;
  EXPECT_GT(evicted, 5000);
  EXPECT_GT(dropped, 5000);
  EXPECT_GT(answered, 5000);
  EXPECT_GT(used, 5000);
  EXPECT_GT(waits, 1000);
  EXPECT_GT(ran_full, 200) << "seeds in which the host had no slot left";
}

}  // namespace
}  // namespace lime
