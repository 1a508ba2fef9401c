#include "common/proven_zeros/input_frame.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "planner/base/random.h"

namespace lime {
namespace {

float Dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Columns vary by themselves, the first most: then the directions are axes.
std::vector<float> InputsAlongAxes(int64_t count, int64_t cols) {
  Random random(2);
  std::vector<float> inputs;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < cols; ++k)
      inputs.push_back(static_cast<float>(k) + static_cast<float>(std::pow(0.3, static_cast<double>(k)) * (random.Uniform() - 0.5)));
  }
  return inputs;
}

TEST(InputFrameTest, DirectionsAreThoseOfTheLargestVarianceInOrder) {
  constexpr int64_t kCols = 9;
  const InputFrame frame = FrameOf(InputsAlongAxes(4000, kCols), kCols, 3);
  ASSERT_EQ(frame.directions.size(), 3u * kCols);
  for (int64_t k = 0; k < kCols; ++k) EXPECT_NEAR(frame.mean[static_cast<size_t>(k)], static_cast<float>(k), 0.02f);
  for (int64_t j = 0; j < 3; ++j) {
    const float* const direction = frame.directions.data() + j * kCols;
    EXPECT_GT(std::abs(direction[j]), 0.99f) << j;
    for (int64_t other = 0; other <= j; ++other)
      EXPECT_NEAR(Dot(direction, frame.directions.data() + other * kCols, kCols), other == j ? 1.0f : 0.0f, 1e-5f);
  }
  const InputFrame first = FirstDirections(frame, 1);
  EXPECT_EQ(first.mean, frame.mean);
  EXPECT_EQ(first.directions, std::vector<float>(frame.directions.begin(), frame.directions.begin() + kCols));
  EXPECT_EQ(FirstDirections(frame, 100).directions, frame.directions);
}

TEST(InputFrameTest, InputsThatDifferInFewDirectionsGiveFewAndOddOnesDoNotCount) {
  EXPECT_TRUE(FrameOf({}, 4, 2).directions.empty());
  EXPECT_EQ(FrameOf({}, 4, 2).mean, std::vector<float>(4));
  const std::vector<float> alike = {1, 2, 3, 1, 2, 3, 1, 2, 3};
  EXPECT_TRUE(FrameOf(alike, 3, 2).directions.empty());
  EXPECT_EQ(FrameOf(alike, 3, 2).mean, (std::vector<float>{1, 2, 3}));
  std::vector<float> on_a_line;
  for (int i = 0; i < 20; ++i) {
    for (const float part : {1.0f, 2.0f, -2.0f}) on_a_line.push_back(part * static_cast<float>(i));
  }
  const InputFrame line = FrameOf(on_a_line, 3, 3);
  EXPECT_EQ(line.directions.size(), 3u);
  std::vector<float> with_nan = on_a_line;
  with_nan.insert(with_nan.end(), {std::numeric_limits<float>::quiet_NaN(), 1, 1, std::numeric_limits<float>::infinity(), 0, 0});
  EXPECT_EQ(FrameOf(with_nan, 3, 3).directions, line.directions);
  const std::vector<float> huge = {3e38f, 0, 0, 0, 3e38f, 0, 0, 0, -3e38f};
  for (const float value : FrameOf(huge, 3, 2).directions) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace lime
