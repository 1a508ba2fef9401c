#include "planner/demand/burst_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace lime {
namespace {

using ::testing::HasSubstr;

std::vector<BurstPoint> PointsOf(const BurstCost& cost) {
  std::vector<BurstPoint> points;
  for (const Bytes bytes : {4 * kKiB, 16 * kKiB, 64 * kKiB}) {
    for (const int64_t reads : {8, 64, 512})
      points.push_back({reads, bytes, cost.MsOf(static_cast<double>(reads), static_cast<double>(bytes))});
  }
  return points;
}

TEST(FitBurstsTest, FindsTheThreeNumbersOfADisk) {
  // As measured (design, section 8): 0.1 ms + n (8.4 us + s / 1.33 GB/s).
  const BurstCost cost{.burst_ms = 0.1, .read_ms = 0.0084, .bytes_per_ms = 1.33e6};
  const std::vector<BurstPoint> points = PointsOf(cost);
  const auto fit = FitBursts(points);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(fit->burst_ms, cost.burst_ms, 1e-9);
  EXPECT_NEAR(fit->read_ms, cost.read_ms, 1e-9);
  EXPECT_NEAR(fit->bytes_per_ms, cost.bytes_per_ms, 1);
  EXPECT_LT(MeanError(points, *fit), 1e-9);
}

TEST(FitBurstsTest, ErrorsOfSmallAndLargeBurstsWeighTheSame) {
  std::vector<BurstPoint> points = PointsOf({.burst_ms = 0.1, .read_ms = 0.01, .bytes_per_ms = 1e6});
  for (size_t i = 0; i < points.size(); ++i) points[i].ms *= i % 2 == 0 ? 1.1 : 0.9;
  const auto fit = FitBursts(points);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(MeanError(points, *fit), 0.1, 0.02);
}

TEST(FitBurstsTest, NoNumberIsNegative) {
  std::vector<BurstPoint> points;
  for (const Bytes bytes : {4 * kKiB, 16 * kKiB, 64 * kKiB}) {
    for (const int64_t reads : {8, 64, 512}) points.push_back({reads, bytes, static_cast<double>(reads * bytes) / 1e6 * 1.02});
  }
  points[0].ms *= 0.5;  // a burst of few reads costs less than its share
  const auto fit = FitBursts(points);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_EQ(fit->burst_ms, 0);
  EXPECT_GE(fit->read_ms, 0);
  EXPECT_GT(fit->bytes_per_ms, 0);
  EXPECT_TRUE(CheckBurst(*fit).ok());
}

TEST(FitBurstsTest, WhatDeterminesNothingIsRefused) {
  const auto error = [](std::vector<BurstPoint> points) { return std::string(FitBursts(points).status().message()); };
  EXPECT_THAT(error({{1, 4096, 1}, {2, 8192, 1}}), HasSubstr("need at least 3"));
  EXPECT_THAT(error({{1, 4096, 1}, {2, 4096, 1}, {3, 4096, 1}}), HasSubstr("need two sizes"));
  EXPECT_THAT(error({{1, 4096, 1}, {2, 8192, 0}, {3, 4096, 1}}), HasSubstr("must be positive"));
  EXPECT_THAT(error({{1, 4096, 1}, {2, 8192, std::numeric_limits<double>::infinity()}, {3, 4096, 1}}), HasSubstr("must be positive"));
}

}  // namespace
}  // namespace lime
