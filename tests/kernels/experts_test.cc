// The choice of experts by cases, and the weighted sum in its stated order.
#include "kernels/cpu/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/cpu_test_util.h"

namespace lime::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Choice {
  int64_t bad_row = -1;
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Choice Choose(const ExpertsConfig& config, std::vector<float> products, const std::vector<float>& correction = {}, int threads = 1) {
  ThreadPool pool(threads);
  const int64_t rows = std::ssize(products) / config.count;
  Choice choice;
  choice.experts.resize(static_cast<size_t>(rows * config.per_token));
  choice.weights.resize(choice.experts.size());
  choice.bad_row = ChooseExperts(pool, config, rows, products.data(), {.data = correction.empty() ? nullptr : correction.data()},
                                 choice.experts.data(), choice.weights.data());
  return choice;
}

TEST(ChooseExpertsTest, TheLargestWinAndAmongEqualsTheLowerId) {
  EXPECT_EQ(Choose({.count = 6, .per_token = 2}, {0, 3, 1, 3, 2, 3}).experts, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(Choose({.count = 6, .per_token = 3}, {5, 5, 5, 5, 5, 5}).experts, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(Choose({.count = 4, .per_token = 2}, {-1, 2, -1, 7}).experts, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(Choose({.count = 3, .per_token = 3}, {3, 1, 2}).experts, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(Choose({.count = 4, .per_token = 1, .scoring = RouterScoring::kSoftmaxOfBest}, {-0.0F, 0.0F, -1, 0}).experts,
            (std::vector<int32_t>{0}));
}

TEST(ChooseExpertsTest, WeightsOfEveryScoringAreRight) {
  const std::vector<float> products = {0.5F, -1, 2, 1};
  const auto softmax = [](std::vector<double> x, size_t i) {
    double sum = 0;
    for (const double value : x) sum += std::exp(value);
    return std::exp(x[i]) / sum;
  };
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const std::vector<double> all = {0.5, -1, 2, 1}, best = {2, 1};
  ExpertsConfig config{.count = 4, .per_token = 2};
  const auto expect = [&](double first, double second) {
    const Choice choice = Choose(config, products);
    EXPECT_EQ(choice.experts, (std::vector<int32_t>{2, 3}));
    EXPECT_NEAR(choice.weights[0], first, 4e-7);
    EXPECT_NEAR(choice.weights[1], second, 4e-7);
  };
  expect(softmax(all, 2), softmax(all, 3));
  config.normalized = true;
  expect(softmax(best, 0), softmax(best, 1));
  config.weight_factor = 2.5;
  expect(2.5 * softmax(best, 0), 2.5 * softmax(best, 1));
  config = {.count = 4, .per_token = 2, .scoring = RouterScoring::kSoftmaxOfBest};
  expect(softmax(best, 0), softmax(best, 1));
  config.scoring = RouterScoring::kSigmoid;
  expect(sigmoid(2), sigmoid(1));
  config.normalized = true;
  expect(sigmoid(2) / (sigmoid(2) + sigmoid(1)), sigmoid(1) / (sigmoid(2) + sigmoid(1)));
}

TEST(ChooseExpertsTest, ACorrectionChoosesAndDoesNotWeigh) {
  const ExpertsConfig config{.count = 4, .per_token = 2, .scoring = RouterScoring::kSigmoid};
  const Choice choice = Choose(config, {1, 2, 3, 0}, {0, -5, 0, 0.5F});
  EXPECT_EQ(choice.experts, (std::vector<int32_t>{2, 3}));
  EXPECT_FLOAT_EQ(choice.weights[0], 1 / (1 + std::exp(-3.0F)));
  EXPECT_FLOAT_EQ(choice.weights[1], 0.5F);
}

TEST(ChooseExpertsTest, OnlyExpertsOfTheGroupsWithTheBestPairsAreChosen) {
  ExpertsConfig config{.count = 8, .per_token = 2, .scoring = RouterScoring::kSoftmaxOfBest, .groups = 4, .groups_kept = 2};
  // Sums of the pairs: 9, 8, 8, 3. The second and third are equal.
  EXPECT_EQ(Choose(config, {9, 0, 4, 4, 7, 1, 2, 1}).experts, (std::vector<int32_t>{0, 2}));
  config.per_token = 4;
  EXPECT_EQ(Choose(config, {9, 0, 4, 4, 7, 1, 2, 1}).experts, (std::vector<int32_t>{0, 1, 2, 3}));
  config.per_token = 2, config.groups_kept = 1;
  EXPECT_EQ(Choose(config, {1, 1, 4, 4, 9, -8, 2, 1}).experts, (std::vector<int32_t>{2, 3}));
  config.groups = 8, config.groups_kept = 2;  // of one expert each
  EXPECT_EQ(Choose(config, {1, 1, 4, 4, 9, -8, 2, 1}).experts, (std::vector<int32_t>{2, 4}));
  // Three of a group: the third does not count.
  config = {.count = 6, .per_token = 1, .scoring = RouterScoring::kSoftmaxOfBest, .groups = 2, .groups_kept = 1};
  EXPECT_EQ(Choose(config, {3, 3, 3, 0, 4, 3}).experts, (std::vector<int32_t>{4}));
}

TEST(ChooseExpertsTest, TheFirstRowWithANaNIsNamed) {
  for (const RouterScoring scoring : {RouterScoring::kSoftmax, RouterScoring::kSoftmaxOfBest, RouterScoring::kSigmoid}) {
    const ExpertsConfig config{.count = 3, .per_token = 1, .scoring = scoring};
    EXPECT_EQ(Choose(config, {1, 2, 3, 1, kNaN, 2, kNaN, 0, 0}).bad_row, 1);
    EXPECT_EQ(Choose(config, {1, 2, 3, 1, 0, 2, 3, 0, 0}, {0, 0, kNaN}).bad_row, 0);
    EXPECT_EQ(Choose(config, {1, 2, -kInfinity}).bad_row, -1);
    EXPECT_EQ(Choose(config, {1, kInfinity, 2}).bad_row, scoring == RouterScoring::kSigmoid ? -1 : 0);
  }
}

TEST(ChooseExpertsTest, ASumOfZeroGivesWeightsOfZero) {
  const ExpertsConfig config{.count = 3, .per_token = 2, .scoring = RouterScoring::kSigmoid, .normalized = true};
  EXPECT_EQ(Choose(config, {-200, -300, -200}).weights, (std::vector<float>{0, 0}));
}

TEST(ChooseExpertsTest, BatchesThreadsAndInstructionSetsChangeNoBit) {
  constexpr int64_t kRows = 70;
  for (const RouterScoring scoring : {RouterScoring::kSoftmax, RouterScoring::kSoftmaxOfBest, RouterScoring::kSigmoid}) {
    const ExpertsConfig config{.count = 100, .per_token = 7, .scoring = scoring, .normalized = true, .groups = 5, .groups_kept = 3};
    const std::vector<float> products = RandomFloats(kRows * config.count, 1, 3.0F), correction = RandomFloats(config.count, 2, 0.1F);
    const Choice expected = Choose(config, products, correction);
    EXPECT_EQ(expected.bad_row, -1);
    ForEachTarget([&](const std::string& target) {
      const Choice all = Choose(config, products, correction, 3);
      EXPECT_EQ(all.experts, expected.experts) << target;
      EXPECT_EQ(all.weights, expected.weights) << target;
      for (int64_t row = 0; row < kRows; row += 23) {
        const auto first = products.begin() + row * config.count;
        const Choice one = Choose(config, {first, first + config.count}, correction);
        EXPECT_TRUE(std::equal(one.weights.begin(), one.weights.end(), expected.weights.begin() + row * 7)) << target;
      }
    });
  }
}

// With fused multiply-adds in ascending id, then the shared expert, then one rounding.
TEST(AddExpertsTest, AddsInTheStatedOrder) {
  constexpr int64_t kRows = 5, kWidth = 45, kPerToken = 3, kStride = 50;
  const std::vector<float> outputs = RandomFloats(kRows * kPerToken * kStride, 3), shared = RandomFloats(kRows * kWidth, 4);
  const std::vector<float> weights = RandomFloats(kRows * kPerToken, 5), scales(kRows, 0.0F);
  std::vector<int32_t> places(kRows * kPerToken);
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int32_t>(i * 7 % places.size());
  for (const DType dtype : kWorkingDTypes) {
    for (const int shared_kind : {0, 1, 2}) {
      const ExpertOutputs experts{.rows = kRows,
                                  .width = kWidth,
                                  .per_token = kPerToken,
                                  .outputs = outputs.data(),
                                  .stride = kStride,
                                  .places = places.data(),
                                  .weights = weights.data(),
                                  .shared = shared_kind > 0 ? shared.data() : nullptr,
                                  .shared_scale = shared_kind > 1 ? scales.data() : nullptr};
      const Array before = RandomArray(dtype, kRows * kWidth, 6);
      ForEachTarget([&](const std::string& target) {
        for (const int threads : {1, 3}) {
          ThreadPool pool(threads);
          Array x = before;
          AddExperts(pool, experts, 0.5F, x.ptr(), dtype);
          for (int64_t i = 0; i < kRows * kWidth; ++i) {
            const int64_t row = i / kWidth;
            float sum = 0;
            for (int64_t s = 0; s < kPerToken; ++s)
              sum = std::fma(weights[row * kPerToken + s], outputs[places[row * kPerToken + s] * kStride + i % kWidth], sum);
            if (shared_kind == 1) sum += shared[i];
            if (shared_kind == 2) sum = std::fma(0.5F, shared[i], sum);  // sigmoid(0)
            Array expected(dtype, 1);
            expected.Set(0, before[i] + sum * 0.5F);
            ASSERT_EQ(x[i], expected[0]) << target << " " << i;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace lime::cpu
