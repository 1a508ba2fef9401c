// What a kernel leaves out is proven: whatever the weights and inputs, no row without an id is above the
// threshold as Linear computes it, on every instruction set.
#include "kernels/cpu/zero_prover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/linear/linear.h"
#include "planner/base/random.h"
#include "tests/cases.h"
#include "tests/kernels/cpu_test_util.h"

namespace lime::cpu {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  int64_t rows = 40, cols = 96, directions = 4;
  int bits = 6;
  DType dtype = DType::kBF16;
};

class Layer {
 public:
  Layer(const Shape& shape, uint32_t seed)
      : shape_(shape),
        weights_(RandomArray(shape.dtype, shape.rows * shape.cols, seed)),
        bias_(RandomArray(shape.dtype, shape.rows, seed + 1)),
        frame_{.mean = RandomFloats(shape.cols, seed + 2, 0.3F),
               .directions = RandomFloats(shape.directions * shape.cols, seed + 3, 1 / std::sqrt(static_cast<float>(shape.cols)))} {}

  Array& weights() { return weights_; }
  Array& bias() { return bias_; }
  InputFrame& frame() { return frame_; }
  const Shape& shape() const { return shape_; }

  void Copy() {
    std::vector<float> floats;
    for (int64_t i = 0; i < weights_.size(); ++i) floats.push_back(weights_[i]);
    auto copy = DeciderCopy::Create({.rows = shape_.rows, .cols = shape_.cols, .weights = floats, .bits = shape_.bits}, frame_);
    ASSERT_TRUE(copy.ok()) << copy.status();
    copy_ = *std::move(copy);
    view_ = copy_->view();
  }
  const DeciderView& view() const { return view_; }

  std::vector<int32_t> Unproven(const Array& x, int64_t tokens, float threshold = 0, int threads = 1) const {
    ThreadPool pool(threads);
    ProverWorkspace ws(
        {.max_tokens = tokens, .max_rows = shape_.rows, .max_cols = shape_.cols + 7, .max_directions = shape_.directions + 1});
    std::vector<int32_t> ids(static_cast<size_t>(shape_.rows));
    const ProvenLayer layer{.copy = &view_, .bias = bias_.ptr()};
    ids.resize(FindUnproven(pool, ws, layer, x.ptr(), shape_.dtype, tokens, threshold, ids.data()));
    return ids;
  }

  // [tokens, rows]
  std::vector<float> Outputs(const Array& x, int64_t tokens) const {
    ThreadPool pool(1);
    LinearWorkspace ws(1, tokens, shape_.cols, Numerics::kPortable);
    const Matrix matrix{.rows = shape_.rows, .cols = shape_.cols, .dtype = shape_.dtype, .data = weights_.ptr()};
    std::vector<float> out(static_cast<size_t>(tokens * shape_.rows));
    const LinearTask task{.weight = &matrix, .bias = bias_.ptr(), .out = out.data(), .out_stride = shape_.rows};
    Linear(pool, ws, x.ptr(), shape_.dtype, tokens, shape_.cols, {&task, 1});
    return out;
  }

  // Rows that the reference proves for all tokens; `margin` is added to each bound.
  std::vector<int32_t> ProvenByReference(const Array& x, int64_t tokens, float threshold, double margin) const {
    std::vector<float> bias;
    for (int64_t row = 0; row < shape_.rows; ++row) bias.push_back(bias_[row]);
    ProvenZeros zeros(view_, SumOrder::kPortable, bias);
    std::vector<bool> unproven(static_cast<size_t>(shape_.rows));
    for (int64_t token = 0; token < tokens; ++token) {
      std::vector<float> row;
      for (int64_t k = 0; k < shape_.cols; ++k) row.push_back(x[token * shape_.cols + k]);
      zeros.SetInput(row);
      for (int64_t i = 0; i < shape_.rows; ++i) {
        const ZBound bound = zeros.BoundOf(i);
        if (!(bound.estimate + bound.slack + margin <= static_cast<double>(threshold))) unproven[static_cast<size_t>(i)] = true;
      }
    }
    std::vector<int32_t> proven;
    for (int32_t i = 0; i < shape_.rows; ++i) {
      if (!unproven[static_cast<size_t>(i)]) proven.push_back(i);
    }
    return proven;
  }

 private:
  Shape shape_;
  Array weights_, bias_;
  InputFrame frame_;
  std::optional<DeciderCopy> copy_;
  DeciderView view_;
};

void ExpectSound(const Layer& layer, const Array& x, int64_t tokens) {
  for (const float threshold : {0.0F, 0.5F}) {
    const std::vector<int32_t> unproven = layer.Unproven(x, tokens, threshold);
    const std::vector<float> z = layer.Outputs(x, tokens);
    for (int64_t row = 0; row < layer.shape().rows; ++row) {
      if (std::ranges::binary_search(unproven, row)) continue;
      for (int64_t token = 0; token < tokens; ++token)
        ASSERT_LE(z[static_cast<size_t>(token * layer.shape().rows + row)], threshold) << "row " << row << ", token " << token;
    }
  }
}

TEST(ZeroProverTest, FindsWhatTheReferenceFindsOnEveryInstructionSet) {
  const Shape shapes[] = {{.bits = 4},
                          {.bits = 5, .dtype = DType::kF16},
                          {.cols = 33, .bits = 6, .dtype = DType::kF32},
                          {.cols = 1, .directions = 1, .bits = 7},
                          {.rows = 300, .cols = 2085, .directions = 130, .bits = 8},
                          {.cols = 31, .directions = 0, .bits = 5},
                          {.rows = 64, .cols = 4096, .directions = 9, .bits = 5}};
  ForEachTarget([&](const std::string& target) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(target + ", " + std::to_string(shape.cols) + " columns, " + std::to_string(shape.bits) + " bits");
      Layer layer(shape, 11);
      layer.Copy();
      for (const int64_t tokens : {1, 3}) {
        const Array x = RandomArray(shape.dtype, tokens * shape.cols, 5);
        ExpectSound(layer, x, tokens);
        const std::vector<int32_t> unproven = layer.Unproven(x, tokens);
        EXPECT_EQ(layer.Unproven(x, tokens, 0, 3), unproven) << "threads";
        // The kernel's own sums differ a little from the reference's.
        const double margin = 1e-4 * static_cast<double>(shape.cols);
        for (const int32_t row : layer.ProvenByReference(x, tokens, 0, margin))
          EXPECT_FALSE(std::ranges::binary_search(unproven, row)) << row;
        const std::vector<int32_t> proven = layer.ProvenByReference(x, tokens, 0, -margin);
        for (int32_t row = 0; row < shape.rows; ++row) {
          EXPECT_TRUE(std::ranges::binary_search(unproven, row) || std::ranges::binary_search(proven, row)) << row;
        }
      }
    }
  });
}

TEST(ZeroProverTest, NumbersOfAllSizesBreakNoProof) {
  int proven = 0;
  const int cases = Cases(150, 5000);
  for (uint32_t seed = 0; seed < static_cast<uint32_t>(cases); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Shape shape{.rows = 6,
                      .cols = 1 + random.Below(150),
                      .directions = random.Below(4),
                      .bits = 4 + random.Below(5),
                      .dtype = kWorkingDTypes[static_cast<size_t>(random.Below(3))]};
    const auto any_size = [&] {
      const float value =
          std::ldexp(static_cast<float>(random.Uniform() - 0.5), random.Chance(70) ? random.Below(8) : random.Below(276) - 148);
      return random.Chance(3) ? -0.0F : value;
    };
    Layer layer(shape, seed);
    for (Array* array : {&layer.weights(), &layer.bias()}) {
      if (random.Chance(50)) continue;
      for (int64_t i = 0; i < array->size(); ++i) {
        array->Set(i, any_size());
        if (!std::isfinite((*array)[i])) array->Set(i, 1);
      }
    }
    layer.Copy();
    if (HasFatalFailure()) return;
    Array x = RandomArray(shape.dtype, shape.cols, seed + 9);
    if (random.Chance(50)) {
      for (int64_t i = 0; i < x.size(); ++i) x.Set(i, any_size());
    }
    ExpectSound(layer, x, 1);
    if (HasFatalFailure()) return;
    proven += static_cast<int>(shape.rows - std::ssize(layer.Unproven(x, 1)));
  }
  EXPECT_GT(proven, cases * 2 / 3);
}

// Along the error of a row, so that its copy says "below zero" and the row is above: half the bound would
// be a wrong proof.
TEST(ZeroProverTest, AnInputAlongTheErrorIsNotProven) {
  for (const int bits : {4, 5, 6, 8}) {
    SCOPED_TRACE(bits);
    Layer layer({.rows = 1, .cols = 256, .directions = 0, .bits = bits, .dtype = DType::kF32}, static_cast<uint32_t>(bits));
    layer.bias().Set(0, 0);
    std::ranges::fill(layer.frame().mean, 0.0F);
    layer.Copy();
    double ee = 0, eq = 0, qq = 0;
    std::vector<double> e, q;
    for (int64_t k = 0; k < 256; ++k) {
      q.push_back(layer.view().CodeAt(0, k) * double{layer.view().of_rows[0].scale});
      e.push_back(double{layer.weights()[k]} - q.back());
      ee += e.back() * e.back(), eq += e.back() * q.back(), qq += q.back() * q.back();
    }
    const double c = (eq + 0.9 * ee) / (qq + eq);
    Array x(DType::kF32, 256);
    for (int64_t k = 0; k < 256; ++k) x.Set(k, static_cast<float>(e[static_cast<size_t>(k)] - c * q[static_cast<size_t>(k)]));
    ASSERT_GT(layer.Outputs(x, 1)[0], 0) << "the input is not what the test is about";
    EXPECT_THAT(layer.Unproven(x, 1), ElementsAre(0));
    std::vector<float> values;
    for (int64_t k = 0; k < 256; ++k) values.push_back(x[k]);
    ProvenZeros zeros(layer.view(), SumOrder::kPortable, {});
    zeros.SetInput(values);
    EXPECT_LE(zeros.BoundOf(0).estimate + zeros.BoundOf(0).slack / 2, 0) << "half the bound must be wrong here";
  }
}

// A number that is far larger than the others makes the step of whole numbers so large that they become
// zero. What they add is still above the threshold. The copy has no error, so only what x loses counts.
TEST(ZeroProverTest, WhatALargeNumberHidesIsNotProvenToBeZero) {
  constexpr int64_t kCols = 64;
  Layer layer({.rows = 1, .cols = kCols, .directions = 0, .bits = 8, .dtype = DType::kF32}, 1);
  for (int64_t k = 0; k < kCols; ++k) layer.weights().Set(k, k == 0 ? 0.0F : 127.0F / 128);
  layer.bias().Set(0, -1);
  std::ranges::fill(layer.frame().mean, 0.0F);
  layer.Copy();
  ASSERT_EQ(layer.view().of_rows[0].error, 0) << "the copy is not what the test is about";
  Array x(DType::kF32, kCols);
  for (int64_t k = 0; k < kCols; ++k) x.Set(k, k == 0 ? 32768.0F : 0.9F);
  ASSERT_GT(layer.Outputs(x, 1)[0], 0);
  EXPECT_THAT(layer.Unproven(x, 1), ElementsAre(0));
  for (int64_t k = 1; k < kCols; ++k) x.Set(k, 0);
  EXPECT_THAT(layer.Unproven(x, 1), IsEmpty()) << "nothing is hidden";
}

TEST(ZeroProverTest, NanAndInfinityProveNothingAndZerosDo) {
  for (const DType dtype : kWorkingDTypes) {
    Layer layer({.dtype = dtype}, 3);
    for (int64_t row = 0; row < 40; ++row) layer.bias().Set(row, -1000);
    layer.Copy();
    Array x = RandomArray(dtype, 2 * 96, 4);
    EXPECT_THAT(layer.Unproven(x, 2), IsEmpty());
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      Array broken = x;
      broken.Set(100, bad);
      EXPECT_THAT(layer.Unproven(broken, 1), IsEmpty()) << "another token";
      EXPECT_THAT(layer.Unproven(broken, 2), SizeIs(40)) << bad;
    }
    for (int64_t k = 0; k < x.size(); ++k) x.Set(k, k % 2 == 0 ? 0.0F : -0.0F);
    EXPECT_THAT(layer.Unproven(x, 2), IsEmpty());
    EXPECT_THAT(layer.Unproven(x, 2, -2000), SizeIs(40));
  }
}

}  // namespace
}  // namespace lime::cpu
