#include "planner/plan/device/interpolation.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace lime {
namespace {

// value = 2 + 3 x + 5 y where x is 1 or 4; at x = 4 only one y was measured.
const std::vector<GridPoint> kPlane = {{1, 0, 5}, {1, 10, 55}, {1, 20, 105}, {4, 10, 64}};

TEST(InterpolationTest, MeasuredPointsAreReturnedAsTheyAre) {
  for (const GridPoint& point : kPlane) EXPECT_DOUBLE_EQ(Interpolate(kPlane, point.x, point.y, Outside::kLinear), point.value);
}

TEST(InterpolationTest, BetweenPointsItIsLinearInBoth) {
  EXPECT_DOUBLE_EQ(Interpolate(kPlane, 1, 5, Outside::kLinear), 30);
  EXPECT_DOUBLE_EQ(Interpolate(kPlane, 2, 10, Outside::kLinear), 58);
}

TEST(InterpolationTest, BeyondThePointsTheLineGoesOnOrTheNearestCounts) {
  EXPECT_DOUBLE_EQ(Interpolate(kPlane, 1, 30, Outside::kLinear), 155);
  EXPECT_DOUBLE_EQ(Interpolate(kPlane, 1, 30, Outside::kNearest), 105);
  EXPECT_DOUBLE_EQ(Interpolate(kPlane, 7, 10, Outside::kLinear), 73);
  EXPECT_DOUBLE_EQ(Interpolate(kPlane, 0.5, 10, Outside::kNearest), 55);
}

TEST(InterpolationTest, ACostNeitherFallsAsItsAmountGrowsNorGrowsFasterThanIt) {
  const std::vector<GridPoint> falling = {{1, 1, 10}, {1, 2, 8}};  // noise: the second came out faster
  EXPECT_DOUBLE_EQ(Interpolate(falling, 1, 4, Outside::kLinear), 8);
  const std::vector<GridPoint> steep = {{1, 1, 1}, {1, 2, 10}};
  EXPECT_DOUBLE_EQ(Interpolate(steep, 1, 4, Outside::kLinear), 20);
  const std::vector<GridPoint> late = {{1, 10, 1}, {1, 20, 10}};  // the line is below 0 at 5
  EXPECT_DOUBLE_EQ(Interpolate(late, 1, 5, Outside::kLinear), 0.5);
}

TEST(InterpolationTest, OnePointStandsForAll) {
  const std::vector<GridPoint> one = {{4, 64, 3}};
  EXPECT_DOUBLE_EQ(Interpolate(one, 1, 1, Outside::kLinear), 3);
  EXPECT_DOUBLE_EQ(Interpolate(one, 512, 8192, Outside::kLinear), 3);
}

}  // namespace
}  // namespace lime
