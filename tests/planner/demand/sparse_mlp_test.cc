// Formulas of sparse MLPs, against numbers worked out by hand in ../shared/flash.md.
#include "planner/demand/sparse_mlp.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/random.h"
#include "planner/demand/bundle_layout.h"
#include "planner/demand/hit_curve.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

double DenseShare(int matrices, bool resident, double active) {
  return ReadShare(SparseDecider::kDense, {.matrices = matrices, .decider_resident = resident, .computed = active, .missing = 1});
}

TEST(SparseMlpTest, ReadsTheDeciderAndTheRestOfNewNeurons) {
  EXPECT_NEAR(DenseShare(2, false, 0.03), 0.515, 1e-12);
  EXPECT_NEAR(DenseShare(2, true, 0.03), 0.015, 1e-12);
  EXPECT_NEAR(DenseShare(3, false, 0.05), 0.3667, 1e-4);
  EXPECT_NEAR(DenseShare(3, false, 0.10), 0.40, 1e-12);
  EXPECT_NEAR(DenseShare(3, false, 0.30), 0.5333, 1e-4);
  EXPECT_NEAR(DenseShare(3, true, 0.05), 0.0333, 1e-4);
  EXPECT_NEAR(DenseShare(3, true, 0.30), 0.20, 1e-12);
  EXPECT_NEAR(ReadShare(SparseDecider::kProven, {.matrices = 3, .computed = 0.08, .missing = 0.25}), 0.02, 1e-12);
  EXPECT_EQ(ReadShare(SparseDecider::kProven, {.matrices = 2, .computed = 1, .missing = 1}), 1) << "never more than dense";
}

TEST(SparseMlpTest, SharesOutsideTheirBoundsAreRefused) {
  EXPECT_TRUE(CheckShares({.matrices = 2}).ok());
  EXPECT_THAT(std::string(CheckShares({.matrices = 4}).message()), HasSubstr("4 matrices"));
  EXPECT_THAT(std::string(CheckShares({.matrices = 2, .computed = 1.5}).message()), HasSubstr("1.5"));
  EXPECT_FALSE(CheckShares({.matrices = 2, .computed = std::nan("")}).ok());
  EXPECT_FALSE(CheckShares({.matrices = 2, .missing = -0.1}).ok());
}

TEST(SparseMlpTest, ACopyTakesItsBitsAndTwelveForEachDirection) {
  const double bits_a_weight = 8.0 * static_cast<double>(CopyBytes(16384, 4096, 6, 4096 / 16)) / (16384.0 * 4096);
  EXPECT_NEAR(bits_a_weight, 6.75, 1e-3);
  EXPECT_EQ(CopyBytes(3, 5, 5, 0), 3 * 4) << "a row begins on a byte";
}

TEST(SparseMlpTest, ABatchComputesTheUnionOfUnrelatedRows) {
  EXPECT_NEAR(UnionOfRows(std::vector<double>(8, 0.03)), 0.216, 1e-3);
  EXPECT_NEAR(1000 * UnionOfRows(std::vector<double>(8, 0.03)), ExpectedUnits(8, 30, 1000), 1e-9);
  EXPECT_EQ(UnionOfRows({}), 0);
  EXPECT_EQ(UnionOfRows(std::vector<double>{0.5, 1}), 1);
}

TEST(SparseMlpTest, AStepHidesReadsBehindHeldNeurons) {
  const BurstCost burst{.burst_ms = 0.1, .read_ms = 0.0084, .bytes_per_ms = 1.33e6};
  SparseStep step{.decide_ms = 1,
                  .held_ms = 2,
                  .new_ms = 0.5,
                  .new_neurons = 100,
                  .neurons_per_read = 1,
                  .bundle_bytes = 16384,
                  .region_bytes = 16384 * Bytes{16384},
                  .sequential_bytes_per_ms = 1.29e6};
  const double reads_ms = 0.1 + 100 * (0.0084 + 16384 / 1.33e6);
  EXPECT_NEAR(ReadMs(step, burst), reads_ms, 1e-12);
  EXPECT_NEAR(StepMs(step, burst), 1 + std::max(2.0, reads_ms) + 0.5, 1e-12);
  step.neurons_per_read = 1.5;
  EXPECT_NEAR(ReadMs(step, burst), 0.1 + 100 * 0.0084 / 1.5 + 100 * 16384 / 1.33e6, 1e-12) << "fewer reads of the same bytes";
  step.new_neurons = 0;
  EXPECT_EQ(ReadMs(step, burst), 0);
  EXPECT_EQ(StepMs(step, burst), 3.5);
  step.new_neurons = 16384;
  EXPECT_NEAR(ReadMs(step, burst), 16384 * 16384 / 1.29e6, 1e-9) << "the whole region is read one after another";
}

// ---- Layout

TEST(BundleLayoutTest, StridesOfKnownWidths) {
  const auto layout = [](bool gated, Bytes width) { return LayoutOf(gated, 2 * width).value(); };
  EXPECT_EQ(layout(false, 2048).stride, 8 * kKiB);
  EXPECT_EQ(layout(false, 4096).stride, 16 * kKiB);
  EXPECT_EQ(layout(false, 4096).slot_bytes, 16 * kKiB) << "nothing is wasted";
  EXPECT_EQ(layout(false, 2560).stride, 10 * kKiB);
  EXPECT_EQ(layout(false, 2560).slot_bytes, 12 * kKiB) << "10 KiB are read as 12";
  EXPECT_EQ(layout(true, 4096).stride, 24 * kKiB);
  EXPECT_EQ(layout(true, 4096).TailAt(), 8 * kKiB);
  EXPECT_EQ(layout(true, 4096).PartAt(2), 16 * kKiB);
  EXPECT_EQ(LayoutOf(false, 2048).value().stride, 4 * kKiB) << "4 bits, width 4096";
}

TEST(BundleLayoutTest, EveryRecordFitsItsSlotAndPartsDoNotOverlap) {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const bool gated = random.Chance(50);
    const BundleLayout layout = LayoutOf(gated, 1 + random.Below(20000)).value();
    ASSERT_GE(layout.part_stride, layout.part_bytes);
    ASSERT_EQ(layout.part_stride % kBundleAlign, 0);
    ASSERT_EQ(layout.record_bytes, layout.PartAt(gated ? 3 : 2));
    ASSERT_GE(layout.stride, layout.record_bytes);
    ASSERT_EQ(layout.stride % kBundleSector, 0);
    ASSERT_LE(layout.stride, std::max(layout.record_bytes + 512, layout.record_bytes * 8 / 7)) << "waste";
    Bytes largest = 0;
    for (Bytes place = 0; place < 8; ++place) {
      const EnclosingRange range = Enclosing(place * layout.stride, layout.record_bytes);
      ASSERT_EQ(range.offset % kBundleReadAlign, 0);
      ASSERT_EQ(range.bytes % kBundleReadAlign, 0);
      ASSERT_EQ(range.offset + range.skipped, place * layout.stride);
      ASSERT_LE(range.skipped + layout.record_bytes, range.bytes);
      largest = std::max(largest, range.bytes);
    }
    ASSERT_EQ(largest, layout.slot_bytes);
  }
}

TEST(BundleLayoutTest, RowsOutsideTheirBoundsAreRefused) {
  EXPECT_THAT(std::string(LayoutOf(true, 0).status().message()), HasSubstr("0 bytes"));
  EXPECT_THAT(std::string(LayoutOf(true, kMostBundlePartBytes + 1).status().message()), HasSubstr("need 1 to"));
  EXPECT_TRUE(LayoutOf(true, kMostBundlePartBytes).ok());
}

}  // namespace
}  // namespace lime
