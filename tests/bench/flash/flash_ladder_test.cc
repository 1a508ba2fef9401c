#include <cmath>
#include <vector>

#include "bench/flash/flash.h"
#include "bench/flash/ladder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime::flash {
namespace {

// 2 layers of 100 neurons; 400 bytes of attention and embedding, 600 of MLPs.
constexpr FlashShape kShape = {
    .layers = 2, .neurons = 100, .weights = 1000, .mlps = 600, .decider = 300, .slot = 3, .tail_slot = 2, .predictor = 20};

TEST(SplitMemoryTest, RowsTakeWhatThePredictorAndTheOtherWeightsLeave) {
  const MemorySplit split = SplitMemory(kShape, 500, kLadder[static_cast<size_t>(Rung::kPath)]).value();
  EXPECT_EQ(split.rows, 13);  // (500 - 420) / (2 * 3)
  EXPECT_EQ(split.streamed, 0);
  EXPECT_EQ(split.held, 420 + 13 * 6);
  EXPECT_LE(split.held, 500);
}

TEST(SplitMemoryTest, ADeciderInMemoryNeedsLessForEachNeuron) {
  const MemorySplit split = SplitMemory(kShape, 800, kLadder[static_cast<size_t>(Rung::kExact)]).value();
  EXPECT_EQ(split.rows, 25);  // (800 - 700) / (2 * 2)
  EXPECT_EQ(split.held, 800);
}

TEST(SplitMemoryTest, WhatDoesNotFitIsStreamed) {
  const MemorySplit split = SplitMemory(kShape, 300, kLadder[static_cast<size_t>(Rung::kPath)]).value();
  EXPECT_EQ(split.rows, 3);
  EXPECT_EQ(split.streamed, 138);  // 420 and 3 rows of each layer, less 300
  EXPECT_EQ(split.held, 300);
}

TEST(SplitMemoryTest, RowsAreAtMostAllNeurons) {
  EXPECT_EQ(SplitMemory(kShape, 1 << 20, kLadder[static_cast<size_t>(Rung::kPath)])->rows, 100);
  EXPECT_FALSE(SplitMemory(kShape, 0, kLadder[static_cast<size_t>(Rung::kPath)]).ok());
}

TEST(FiguresTest, AreThoseOfOneToken) {
  // 1 + 1.6 + 1 + 3 ms, and 1 + 1.6 + 1 + 5.8 ms
  const DiskCost before{.burst = {.burst_ms = 0.1, .read_ms = 0.1, .bytes_per_ms = 2e6}, .sequential_bytes_per_ms = 2e6};
  const DiskCost after{.burst = before.burst, .sequential_bytes_per_ms = 6e6 / 5.8};
  const RungFigures figures = FiguresOf({.tokens = 4,
                                         .held = 2'000'000'000,
                                         .neurons = 40,
                                         .reads = 20,
                                         .load = {.bursts = 10, .reads = 16, .neurons = 2'000'000, .streamed = 6'000'000},
                                         .io_ms = 16,
                                         .manage_ms = 1,
                                         .moves = 2},
                                        {before, after});
  EXPECT_DOUBLE_EQ(figures.held_gb, 2);
  EXPECT_DOUBLE_EQ(figures.read_mb, 2);
  EXPECT_DOUBLE_EQ(figures.gb_per_s, 0.5);
  EXPECT_DOUBLE_EQ(figures.neurons, 10);
  EXPECT_DOUBLE_EQ(figures.reads, 5);
  EXPECT_DOUBLE_EQ(figures.io_ms, 4);
  EXPECT_DOUBLE_EQ(figures.predicted_ms, 2);
  EXPECT_DOUBLE_EQ(figures.ratio, 2);
  EXPECT_DOUBLE_EQ(figures.manage_ms, 0.25);
  EXPECT_DOUBLE_EQ(figures.moves, 0.5);
}

TEST(FiguresTest, ComputingHidesWeightsThatAreReadWholeAndAddsToNeurons) {
  const RungFigures figures{.io_ms = 10, .manage_ms = 1};
  EXPECT_DOUBLE_EQ(WholeMs(kLadder[0], figures, 4), 10);
  EXPECT_DOUBLE_EQ(WholeMs(kLadder[1], figures, 40), 40);
  EXPECT_DOUBLE_EQ(WholeMs(kLadder[3], figures, 4), 15);
}

TEST(FiguresTest, TheEngineIsPredictedByItsBurstsAndItsStream) {
  const DiskCost disk{.burst = {.burst_ms = 0.1, .read_ms = 0.01, .bytes_per_ms = 1e6}, .sequential_bytes_per_ms = 2e6};
  const DiskCost later{.burst = disk.burst, .sequential_bytes_per_ms = 1e6};
  const EngineRung rung = EngineFigures({.steps = 2,
                                         .load = {.bursts = 8, .reads = 60, .neurons = 2'000'000, .streamed = 4'000'000},
                                         .neurons = 100,
                                         .stream_ms = 6,
                                         .neuron_ms = 4,
                                         .whole_ms = 30},
                                        {disk, later});
  EXPECT_DOUBLE_EQ(rung.read_mb, 3);
  EXPECT_DOUBLE_EQ(rung.reads, 30);
  EXPECT_DOUBLE_EQ(rung.neurons, 50);
  EXPECT_DOUBLE_EQ(rung.io_ms, 5);
  EXPECT_DOUBLE_EQ(rung.predicted_ms, (8 * 0.1 + 60 * 0.01 + 2 + (2.0 + 4.0) / 2) / 2);
  EXPECT_DOUBLE_EQ(rung.whole_ms, 15);
}

TEST(LadderTest, HasTheRungsOfThePapersTable2InItsOrder) {
  for (size_t i = 0; i < kLadder.size(); ++i) EXPECT_EQ(static_cast<size_t>(kLadder[i].rung), i);
  for (size_t i = 1; i < 5; ++i) {
    EXPECT_LT(kLadder[i].paper.io_ms, kLadder[i - 1].paper.io_ms) << kLadder[i].name;
    // Table 2 is consistent: bytes / rate, but for what its figures are rounded to.
    EXPECT_NEAR(kLadder[i].paper.read_gb / kLadder[i].paper.gb_per_s * 1e3 / kLadder[i].paper.io_ms, 1, 0.03) << kLadder[i].name;
  }
}

}  // namespace
}  // namespace lime::flash
