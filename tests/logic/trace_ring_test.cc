#include "daemon/logic/trace_ring.h"

#include <map>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace lime {
namespace {

TimelineSpan Numbered(int32_t thread, int32_t number) {
  return {.begin_ms = static_cast<double>(number), .end_ms = static_cast<double>(number) + thread, .step = number, .stage = thread};
}

std::vector<TimelineSpan> DrainAll(TraceRing& ring) {
  std::vector<TimelineSpan> spans;
  ring.Drain(SIZE_MAX, spans);
  return spans;
}

TEST(TraceRingTest, ReturnsSpansInOrderRoundAndRound) {
  TraceRing ring(5);
  EXPECT_EQ(ring.size(), 8u);
  int32_t added = 0, drained = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 1 + round % 8; ++i) ring.Add(Numbered(0, added++));
    for (const TimelineSpan& span : DrainAll(ring)) EXPECT_EQ(span, Numbered(0, drained++));
    EXPECT_EQ(drained, added);
  }
  EXPECT_EQ(ring.lost(), 0);
}

TEST(TraceRingTest, DrainsNoMoreThanAsked) {
  TraceRing ring(8);
  for (int i = 0; i < 6; ++i) ring.Add(Numbered(0, i));
  std::vector<TimelineSpan> spans;
  ring.Drain(0, spans);
  EXPECT_TRUE(spans.empty());
  ring.Drain(4, spans);
  EXPECT_EQ(spans.size(), 4u);
  ring.Drain(4, spans);
  ASSERT_EQ(spans.size(), 6u);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(spans[static_cast<size_t>(i)], Numbered(0, i));
}

TEST(TraceRingTest, WhatFindsNoRoomIsCountedAndTheOldestStay) {
  TraceRing ring(4);
  for (int i = 0; i < 10; ++i) ring.Add(Numbered(0, i));
  EXPECT_EQ(ring.lost(), 6);
  const std::vector<TimelineSpan> spans = DrainAll(ring);
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans.back(), Numbered(0, 3));
  ring.Add(Numbered(0, 10));
  EXPECT_EQ(DrainAll(ring), std::vector<TimelineSpan>{Numbered(0, 10)});
}

TEST(TraceRingTest, ASpanThatEndsAfterTheEndOfRecordingIsNeitherKeptNorLost) {
  TraceRing ring(4);
  ring.RecordUntil(2);
  for (int i = 0; i < 10; ++i) ring.Add(Numbered(0, i));
  EXPECT_EQ(DrainAll(ring).size(), 3u) << "those that end at 0, 1 and 2";
  EXPECT_EQ(ring.lost(), 0);
  ring.RecordUntil(20);
  ring.Add(Numbered(0, 11));
  EXPECT_EQ(DrainAll(ring), std::vector<TimelineSpan>{Numbered(0, 11)});
}

// Every span of every thread comes once and whole, those of one thread in order, or is counted as
// lost.
TEST(TraceRingTest, ManyThreadsAddWhileOneDrains) {
  constexpr int kThreads = 4;
  constexpr int32_t kEach = 20000;
  TraceRing ring(64);
  std::vector<std::thread> threads(kThreads);
  for (int32_t t = 0; t < kThreads; ++t) {
    threads[t] = std::thread([&ring, t] {
      for (int32_t i = 0; i < kEach; ++i) ring.Add(Numbered(t, i));
    });
  }
  std::map<int32_t, int32_t> newest;
  int64_t drained = 0;
  const auto drain = [&] {
    for (const TimelineSpan& span : DrainAll(ring)) {
      EXPECT_EQ(span, Numbered(span.stage, span.step));
      const auto [found, first] = newest.try_emplace(span.stage, -1);
      EXPECT_GT(span.step, found->second);
      found->second = span.step;
      ++drained;
    }
  };
  while (drained + ring.lost() < int64_t{kThreads} * kEach) drain();
  for (std::thread& thread : threads) thread.join();
  drain();
  EXPECT_EQ(drained + ring.lost(), int64_t{kThreads} * kEach);
}

}  // namespace
}  // namespace lime
