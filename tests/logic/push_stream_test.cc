// Weights on their way: whatever breaks, flips or is full, the device ends with the right bytes,
// and little is sent twice.
#include "daemon/logic/push_stream.h"

#include <deque>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using Verdict = PushReceiver::Verdict;

const PushSender::Options kSmall = {.chunk_bytes = 10, .window_bytes = 40};

TEST(PushSenderTest, ChunksFollowOneAnotherAndNoneCrossesAUnit) {
  PushSender sender({25, 5, 10}, {.chunk_bytes = 10, .window_bytes = 1000});
  std::vector<std::pair<int64_t, Bytes>> chunks;
  while (const auto chunk = sender.Next()) chunks.emplace_back(chunk->position, chunk->bytes);
  EXPECT_THAT(chunks, ::testing::ElementsAre(std::pair(0, 10), std::pair(10, 10), std::pair(20, 5), std::pair(25, 5), std::pair(30, 10)));
  EXPECT_FALSE(sender.done());
  ASSERT_TRUE(sender.OnStored(40).ok());
  EXPECT_TRUE(sender.done());
}

TEST(PushSenderTest, NoMoreThanTheWindowIsUnderWay) {
  PushSender sender({1000}, kSmall);
  int chunks = 0;
  while (sender.Next()) ++chunks;
  EXPECT_EQ(chunks, 4);
  ASSERT_TRUE(sender.OnStored(15).ok());
  EXPECT_TRUE(sender.Next());
  EXPECT_FALSE(sender.Next());
}

TEST(PushSenderTest, AChunkLargerThanTheWindowIsSentAlone) {
  PushSender sender({100}, {.chunk_bytes = 50, .window_bytes = 20});
  EXPECT_TRUE(sender.Next());
  EXPECT_FALSE(sender.Next());
  ASSERT_TRUE(sender.OnStored(50).ok());
  EXPECT_TRUE(sender.Next());
}

TEST(PushSenderTest, APositionThatWasNotSentIsRefused) {
  PushSender sender({100}, kSmall);
  sender.Next();
  EXPECT_TRUE(absl::IsInvalidArgument(sender.OnStored(11)));
  EXPECT_TRUE(absl::IsInvalidArgument(sender.OnAgain(-1)));
  ASSERT_TRUE(sender.OnStored(10).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(sender.OnStored(9)));
}

TEST(PushSenderTest, APushFailsIfTheDeviceAlwaysAsksAgain) {
  PushSender sender({100}, kSmall);
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    sender.Next();
    status = sender.OnAgain(0);
  }
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST(PushReceiverTest, ADamagedChunkIsAskedForAgainAndWhatFollowedItIsDropped) {
  PushReceiver receiver({30, 10}, {});
  EXPECT_EQ(*receiver.OnChunk(0, 10, true), Verdict::kWrite);
  EXPECT_EQ(*receiver.OnChunk(10, 10, false), Verdict::kAgain);
  EXPECT_EQ(receiver.position(), 10);
  EXPECT_EQ(*receiver.OnChunk(20, 10, true), Verdict::kDrop);
  EXPECT_EQ(*receiver.OnChunk(30, 10, true), Verdict::kDrop);
  EXPECT_EQ(*receiver.OnChunk(10, 10, true), Verdict::kWrite);
  EXPECT_EQ(*receiver.OnChunk(20, 10, true), Verdict::kWriteEnd);
  EXPECT_FALSE(receiver.done());
  EXPECT_EQ(*receiver.OnUnit(true), Verdict::kWrite);
  EXPECT_EQ(*receiver.OnChunk(30, 10, true), Verdict::kWriteEnd);
  EXPECT_EQ(*receiver.OnUnit(true), Verdict::kWrite);
  EXPECT_TRUE(receiver.done());
}

TEST(PushReceiverTest, AUnitThatDiffersIsAskedForFromItsBeginningButNotForEver) {
  PushReceiver receiver({10, 10}, {.max_attempts = 3});
  for (int attempt = 1; attempt < 3; ++attempt) {
    EXPECT_EQ(*receiver.OnChunk(0, 10, true), Verdict::kWriteEnd);
    EXPECT_EQ(*receiver.OnUnit(false), Verdict::kAgain);
    EXPECT_EQ(receiver.position(), 0);
  }
  EXPECT_EQ(*receiver.OnChunk(0, 10, true), Verdict::kWriteEnd);
  EXPECT_TRUE(absl::IsDataLoss(receiver.OnUnit(false).status()));
}

TEST(PushReceiverTest, WhatCannotFollowIsRefused) {
  const auto refused = [](int64_t position, Bytes bytes) {
    PushReceiver receiver({30, 10}, {});
    return absl::IsInvalidArgument(receiver.OnChunk(position, bytes, true).status());
  };
  EXPECT_TRUE(refused(0, 0));
  EXPECT_TRUE(refused(0, -5));
  EXPECT_TRUE(refused(0, 31));  // into the next unit
  EXPECT_TRUE(refused(10, 10));
  EXPECT_TRUE(refused(-10, 10));
  EXPECT_TRUE(refused(40, 10));
  EXPECT_TRUE(refused(INT64_MAX, INT64_MAX));
  PushReceiver done({10}, {});
  EXPECT_EQ(*done.OnChunk(0, 10, true), Verdict::kWriteEnd);
  EXPECT_TRUE(absl::IsInvalidArgument(done.OnChunk(10, 1, true).status()));
  EXPECT_EQ(*done.OnUnit(true), Verdict::kWrite);
  EXPECT_TRUE(absl::IsInvalidArgument(done.OnChunk(10, 1, true).status()));
}

TEST(PushReceiverTest, ASenderThatDoesNotGoBackIsRefused) {
  PushReceiver receiver({1000}, {.max_dropped_bytes = 100});
  EXPECT_EQ(*receiver.OnChunk(0, 10, false), Verdict::kAgain);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(*receiver.OnChunk(10, 10, true), Verdict::kDrop);
  EXPECT_TRUE(absl::IsInvalidArgument(receiver.OnChunk(10, 10, true).status()));
}

// ---- Both ends, a wire and a disk, with faults drawn from a seed

struct Faults {
  double flip = 0;   // of a chunk on the wire
  double spoil = 0;  // of a chunk between its check and the disk
  double cut = 0;    // of the connection, at each event
};

// The device's disk: bytes by position of the whole, and which units are known to be right.
struct World {
  std::vector<Bytes> units;
  std::vector<uint8_t> disk;
  std::vector<bool> present;

  uint8_t Right(size_t unit, int64_t offset) const { return static_cast<uint8_t>(37 * unit + 11 * static_cast<size_t>(offset) + 1); }
  int64_t BeginOf(size_t unit) const {
    int64_t begin = 0;
    for (size_t i = 0; i < unit; ++i) begin += units[i];
    return begin;
  }
};

// One connection: until all is there, or it breaks. What was sent, in bytes.
Bytes Connect(World& world, const Faults& faults, std::mt19937& random, absl::Status& status) {
  std::vector<size_t> missing;
  std::vector<Bytes> sizes;
  for (size_t u = 0; u < world.units.size(); ++u) {
    if (!world.present[u]) missing.push_back(u), sizes.push_back(world.units[u]);
  }
  PushSender sender(sizes, kSmall);
  PushReceiver receiver(sizes, {});
  struct Arriving {
    PushSender::Chunk chunk;
    bool flipped;
  };
  std::deque<Arriving> forth;
  std::deque<std::pair<bool, int64_t>> back;  // again?, position
  const auto chance = [&](double p) { return std::uniform_real_distribution<>()(random) < p; };
  bool spoiled = false;  // some byte of the unit under way
  while (!sender.done() && status.ok() && !chance(faults.cut)) {
    const int turn = std::uniform_int_distribution<>(0, 2)(random);
    if (turn == 0) {
      if (const auto chunk = sender.Next()) forth.push_back({*chunk, chance(faults.flip)});
    } else if (turn == 1 && !forth.empty()) {
      const auto [chunk, flipped] = forth.front();
      forth.pop_front();
      absl::StatusOr<Verdict> verdict = receiver.OnChunk(chunk.position, chunk.bytes, !flipped);
      if (!verdict.ok()) return status = verdict.status(), sender.sent();
      if (*verdict == Verdict::kDrop) continue;
      if (*verdict != Verdict::kAgain) {
        const int64_t at = world.BeginOf(missing[chunk.unit]) + chunk.offset;
        for (int64_t i = 0; i < chunk.bytes; ++i) world.disk[at + i] = world.Right(missing[chunk.unit], chunk.offset + i);
        if (chance(faults.spoil)) world.disk[at] ^= 1, spoiled = true;
      }
      if (*verdict == Verdict::kWriteEnd) {
        verdict = receiver.OnUnit(!spoiled);
        if (!verdict.ok()) return status = verdict.status(), sender.sent();
        if (!spoiled) world.present[missing[chunk.unit]] = true;
        spoiled = false;
      }
      back.emplace_back(*verdict == Verdict::kAgain, receiver.position());
    } else if (turn == 2 && !back.empty()) {
      const auto [again, position] = back.front();
      back.pop_front();
      status = again ? sender.OnAgain(position) : sender.OnStored(position);
    }
  }
  return sender.sent();
}

class PushStreamFaults : public ::testing::TestWithParam<Faults> {};

TEST_P(PushStreamFaults, TheDeviceEndsWithTheRightBytesAndLittleIsSentTwice) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    World world;
    for (int u = std::uniform_int_distribution<>(1, 12)(random); u > 0; --u)
      world.units.push_back(std::uniform_int_distribution<>(1, 60)(random));
    const int64_t total = world.BeginOf(world.units.size());
    world.disk.assign(static_cast<size_t>(total), 0);
    world.present.assign(world.units.size(), false);
    Bytes sent = 0;
    int connections = 0;
    for (; std::ranges::find(world.present, false) != world.present.end() && connections < 10'000; ++connections) {
      absl::Status status;
      sent += Connect(world, GetParam(), random, status);
      ASSERT_TRUE(status.ok()) << status;
    }
    for (size_t u = 0; u < world.units.size(); ++u) {
      for (int64_t i = 0; i < world.units[u]; ++i) ASSERT_EQ(world.disk[world.BeginOf(u) + i], world.Right(u, i)) << "unit " << u;
    }
    if (GetParam().cut == 0 && GetParam().flip == 0 && GetParam().spoil == 0) {
      EXPECT_EQ(sent, total);
      EXPECT_EQ(connections, 1);
    }
    // A break costs what was under way and the unit it fell into.
    if (GetParam().flip == 0 && GetParam().spoil == 0) {
      EXPECT_LE(sent, total + (connections - 1) * (60 + kSmall.window_bytes));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PushStreamFaults,
                         ::testing::Values(Faults{}, Faults{.flip = 0.01}, Faults{.spoil = 0.005}, Faults{.cut = 0.02},
                                           Faults{.flip = 0.01, .spoil = 0.005, .cut = 0.01}));

}  // namespace
}  // namespace lime
