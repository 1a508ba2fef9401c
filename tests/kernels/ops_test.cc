// Norms, activations, conversions and softmax statistics against fp64, and their bits over threads
// and instruction sets.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "kernels/cpu/base/lanes-inl.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/row_scorer.h"
#include "tests/kernels/convert.h"
#include "tests/kernels/cpu_test_util.h"

namespace lime::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kWidths[] = {1, 8, 15, 16, 33, 80, 100, 576, 1000};

// ---- Conversions

TEST(ConvertTest, EveryHalfGoesThroughFp32Unchanged) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const F16 half{static_cast<uint16_t>(bits)};
    const BF16 brain{static_cast<uint16_t>(bits)};
    if (std::isnan(ToFloat(half))) {
      EXPECT_TRUE(std::isnan(ToFloat(FromFloat<F16>(ToFloat(half)))));
    } else {
      EXPECT_EQ(FromFloat<F16>(ToFloat(half)).bits, bits);
    }
    if (std::isnan(ToFloat(brain))) {
      EXPECT_TRUE(std::isnan(ToFloat(FromFloat<BF16>(ToFloat(brain)))));
    } else {
      EXPECT_EQ(FromFloat<BF16>(ToFloat(brain)).bits, bits);
    }
  }
}

TEST(ConvertTest, TiesGoToEvenAndOverflowToInfinity) {
  EXPECT_EQ(FromFloat<BF16>(1.0f + 0x1p-8f).bits, 0x3f80);
  EXPECT_EQ(FromFloat<BF16>(1.0f + 3 * 0x1p-8f).bits, 0x3f82);
  EXPECT_EQ(FromFloat<BF16>(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(FromFloat<F16>(1.0f + 0x1p-11f).bits, 0x3c00);
  EXPECT_EQ(FromFloat<F16>(1.0f + 3 * 0x1p-11f).bits, 0x3c02);
  EXPECT_EQ(FromFloat<F16>(65519.0f).bits, 0x7bff);
  EXPECT_EQ(FromFloat<F16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(FromFloat<F16>(0x1p-25f).bits, 0);            // half of the smallest subnormal
  EXPECT_EQ(FromFloat<F16>(0x1.8p-25f).bits, 1);          // three quarters of it
  EXPECT_EQ(FromFloat<F16>(0x1.8p-24f).bits, 2);          // one and a half of it
  EXPECT_EQ(FromFloat<F16>(-0x1.ffcp-15f).bits, 0x8400);  // a subnormal that rounds up to a normal
  EXPECT_TRUE(std::isnan(ToFloat(FromFloat<BF16>(std::bit_cast<float>(0x7f800001u)))));
}

TEST(ConvertTest, ArraysMatchSingleValuesOnEveryInstructionSet) {
  std::vector<float> x = RandomFloats(1003, 1, 100.0f);
  const float special[] = {0.0f,  -0.0f,  kInfinity, -kInfinity, kNaN,     65519.9f,  65520.0f,
                           1e-7f, -3e-8f, 1e-40f,    3e38f,      0x1p-25f, 0x1.8p-24f};
  std::copy(std::begin(special), std::end(special), x.begin() + 17);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    Array expected(dtype, x.size());
    for (size_t i = 0; i < x.size(); ++i) expected.Set(i, x[i]);
    ForEachTarget([&](const std::string& target) {
      Array rounded(dtype, x.size());
      std::vector<float> back(x.size());
      Convert(x.data(), DType::kF32, rounded.ptr(), dtype, x.size());
      Convert(rounded.ptr(), dtype, back.data(), DType::kF32, x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        if (std::isnan(x[i])) {
          EXPECT_TRUE(std::isnan(rounded[i]) && std::isnan(back[i])) << target;
        } else {
          EXPECT_EQ(rounded[i], expected[i]) << target << " of " << x[i];
          EXPECT_EQ(back[i], expected[i]) << target;
        }
      }
    });
  }
}

// ---- exp and the activations

// The scalar code stands for every instruction set: the tests of bits below compare them.
TEST(ExpTest, IsWithinTwoUlpOfFp64OverAllFiniteResults) {
  double worst = 0;
  for (uint32_t bits = 0; bits < 0x43000000u; bits += 1009) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const float x = std::bit_cast<float>(bits | sign);
      const double exact = std::exp(static_cast<double>(x));
      const float y = HWY_NAMESPACE::ExpOne(x);
      if (exact >= 0x1.ffffffp127) {
        EXPECT_EQ(y, kInfinity) << x;
        continue;
      }
      const double ulp = std::max(std::ldexp(1.0, std::ilogb(exact) - 23), 0x1p-149);
      worst = std::max(worst, std::abs(y - exact) / ulp);
    }
  }
  EXPECT_LT(worst, 2.0);
  std::printf("exp: at most %.3f ulp\n", worst);
}

TEST(ExpTest, KeepsSpecialValues) {
  EXPECT_EQ(HWY_NAMESPACE::ExpOne(0.0f), 1.0f);
  EXPECT_EQ(HWY_NAMESPACE::ExpOne(-0.0f), 1.0f);
  EXPECT_EQ(HWY_NAMESPACE::ExpOne(-kInfinity), 0.0f);
  EXPECT_EQ(HWY_NAMESPACE::ExpOne(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(HWY_NAMESPACE::ExpOne(kNaN)));
  EXPECT_TRUE(std::isnan(HWY_NAMESPACE::ExpOne(-kNaN)));
}

TEST(ActivationTest, SiluIsAccurateAndKeepsSpecialValues) {
  ThreadPool pool(1);
  std::vector<float> x = RandomFloats(10007, 2, 20.0f);
  for (size_t i = 0; i < 400; ++i) x[i] = -110.0f + 0.55f * static_cast<float>(i);
  std::vector<float> y(x.size());
  GatedActivation(pool, Activation::kSilu, x.data(), nullptr, 1, x.size(), 0, y.data(), DType::kF32, 0);
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = x[i] / (1 + std::exp(-static_cast<double>(x[i])));
    const double limit = x[i] < -87 ? 1e-36 : std::abs(expected) * 3e-7;
    EXPECT_NEAR(y[i], expected, limit) << x[i];
  }
  const float special[] = {kNaN, kInfinity, 0.0f, -0.0f, -1000.0f};
  GatedActivation(pool, Activation::kSilu, special, nullptr, 1, 5, 0, y.data(), DType::kF32, 0);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], kInfinity);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_EQ(y[4], 0.0f);
}

double ExactActivation(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return x * std::erfc(-x / std::sqrt(2.0)) / 2;
    case Activation::kGeluTanh:
      return x / (1 + std::exp(-2 * std::sqrt(2 / 3.14159265358979324) * (x + 0.044715 * x * x * x)));
    default:
      return std::max(x, 0.0);
  }
}

TEST(ActivationTest, GeluIsAccurateAndKeepsSpecialValues) {
  ThreadPool pool(1);
  std::vector<float> x;
  for (float value = -13.0f; value < 40.0f; value += 0.0013f) x.push_back(value);
  std::vector<float> y(x.size());
  for (const Activation activation : {Activation::kGelu, Activation::kGeluTanh}) {
    GatedActivation(pool, activation, x.data(), nullptr, 1, std::ssize(x), 0, y.data(), DType::kF32, 0);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = ExactActivation(activation, x[i]);
      if (std::abs(expected) < 1e-36) continue;
      const double error = std::abs(y[i] - expected) / std::abs(expected);
      worst = std::max(worst, error);
      // e^(-2 y) amplifies the rounding of its exponent, which is up to 87.
      EXPECT_LT(error, activation == Activation::kGelu ? 1e-6 : 1.5e-5) << x[i];
    }
    std::printf("%s: at most %.3g of the result\n", activation == Activation::kGelu ? "gelu" : "gelu with tanh", worst);
    const float special[] = {kNaN, kInfinity, 0.0f, -0.0f, -1000.0f, 3e38f, 1e-30f};
    GatedActivation(pool, activation, special, nullptr, 1, 7, 0, y.data(), DType::kF32, 0);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], kInfinity);
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_EQ(y[3], 0.0f);
    EXPECT_EQ(y[4], 0.0f);
    EXPECT_EQ(y[5], 3e38f);
    EXPECT_NEAR(y[6], 5e-31f, 1e-36f);
  }
}

TEST(ActivationTest, FatReluKeepsWhatIsAboveItsThreshold) {
  ThreadPool pool(1);
  const float above = std::nextafter(0.25f, 1.0f);
  const float gate[] = {0.25f, above, -3.0f, 0.1f, 7.0f, kNaN, kInfinity, -0.0f}, up[] = {2, 2, 5, -1, -0.5f, 1, 2, -2};
  float y[8];
  GatedActivation(pool, Activation::kFatRelu, gate, up, 1, 8, 0, y, DType::kF32, 0, 0.25f);
  EXPECT_EQ(std::vector<float>(y, y + 5), (std::vector<float>{0, 2 * above, 0, 0, -3.5f}));
  EXPECT_TRUE(std::isnan(y[5]));
  EXPECT_EQ(y[6], kInfinity);
  EXPECT_EQ(y[7], 0);
}

TEST(ActivationTest, DoubleReluIsZeroWhereEitherFactorIs) {
  ThreadPool pool(1);
  const float gate[] = {2, 2, -2, -2, kNaN, 3, 0, kInfinity}, up[] = {3, -3, 3, -3, 1, kNaN, 5, 2};
  float y[8];
  GatedActivation(pool, Activation::kDoubleRelu, gate, up, 1, 8, 0, y, DType::kF32, 0);
  EXPECT_EQ(std::vector<float>(y, y + 4), (std::vector<float>{6, 0, 0, 0}));
  EXPECT_TRUE(std::isnan(y[4]) && std::isnan(y[5]));
  EXPECT_EQ(y[6], 0);
  EXPECT_EQ(y[7], kInfinity);
}

// Of both forms; NaN stays in its element, and infinities are clamped.
TEST(ActivationTest, ClampedSwigluMatchesFp64WhereGateAndUpAlternateOrNot) {
  constexpr float kLimit = 1.5f;
  ThreadPool pool(2);
  for (const DType dtype : kWorkingDTypes) {
    for (const int64_t n : kWidths) {
      constexpr int64_t kTokens = 3;
      std::vector<float> gate = RandomFloats(kTokens * n, 5), up = RandomFloats(kTokens * n, 6, 2.0f), both;
      gate[0] = kInfinity, up[static_cast<size_t>(n - 1)] = -kInfinity;
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t i = 0; i < n; ++i) both.push_back(gate[t * n + i]), both.push_back(up[t * n + i]);
        both.push_back(7.0f);
      }
      Array apart(dtype, kTokens * n), alternating(dtype, kTokens * n);
      GatedActivation(pool, Activation::kClampedSwiglu, gate.data(), up.data(), kTokens, n, n, apart.ptr(), dtype, n, kLimit);
      AlternatingActivation(pool, Activation::kClampedSwiglu, both.data(), kTokens, n, 2 * n + 1, alternating.ptr(), dtype, n, kLimit);
      EXPECT_EQ(apart.data, alternating.data);
      for (int64_t i = 0; i < kTokens * n; ++i) {
        const double g = std::min(gate[i], kLimit), u = std::clamp(up[i], -kLimit, kLimit);
        const double expected = (u + 1) * g / (1 + std::exp(-1.702 * g));
        EXPECT_NEAR(apart[i], expected, Tolerance(dtype, expected));
      }
    }
  }
  const float not_a_number[] = {kNaN, 1, 1, kNaN};
  float y[2];
  AlternatingActivation(pool, Activation::kClampedSwiglu, not_a_number, 1, 2, 4, y, DType::kF32, 2, 7.0f);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
}

TEST(ActivationTest, MatchesFp64InEveryDTypeAndWidth) {
  ThreadPool pool(2);
  for (DType dtype : kWorkingDTypes) {
    for (int64_t n : kWidths) {
      for (Activation activation : {Activation::kSilu, Activation::kRelu, Activation::kGelu, Activation::kGeluTanh}) {
        const int64_t tokens = 3, stride = n + 5;
        const std::vector<float> gate = RandomFloats(tokens * stride, 3), up = RandomFloats(tokens * stride, 4);
        Array gated(dtype, tokens * n), plain(dtype, tokens * n);
        GatedActivation(pool, activation, gate.data(), up.data(), tokens, n, stride, gated.ptr(), dtype, n);
        GatedActivation(pool, activation, gate.data(), nullptr, tokens, n, stride, plain.ptr(), dtype, n);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t i = 0; i < n; ++i) {
            const double g = gate[t * stride + i], u = up[t * stride + i];
            const double a = ExactActivation(activation, g);
            EXPECT_NEAR(gated[t * n + i], a * u, Tolerance(dtype, a * u));
            EXPECT_NEAR(plain[t * n + i], a, Tolerance(dtype, a));
          }
        }
      }
    }
  }
}

TEST(ActivationTest, SoftplusIsAccurateAndKeepsSpecialValues) {
  float lanes[16];
  for (float x = -100.0f; x < 100.0f; x += 0.0371f) {
    HWY_NAMESPACE::Store(HWY_NAMESPACE::Softplus(HWY_NAMESPACE::Set(x)), lanes);
    const double expected = x > 0 ? x + std::log1p(std::exp(-static_cast<double>(x))) : std::log1p(std::exp(static_cast<double>(x)));
    EXPECT_NEAR(lanes[3], expected, x < -87 ? 1e-37 : expected * 4e-7) << x;
  }
  for (const auto& [x, expected] : {std::pair(kInfinity, kInfinity), std::pair(-kInfinity, 0.0f)}) {
    HWY_NAMESPACE::Store(HWY_NAMESPACE::Softplus(HWY_NAMESPACE::Set(x)), lanes);
    EXPECT_EQ(lanes[0], expected);
  }
  HWY_NAMESPACE::Store(HWY_NAMESPACE::Softplus(HWY_NAMESPACE::Set(kNaN)), lanes);
  EXPECT_TRUE(std::isnan(lanes[0]));
}

// ---- Norms

double RowScale(const Array& x, int64_t row, int64_t width, double mean, double eps) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += (x[row * width + i] - mean) * (x[row * width + i] - mean);
  return 1 / std::sqrt(squares / width + eps);
}

TEST(NormTest, RmsNormMatchesFp64) {
  ThreadPool pool(2);
  for (DType dtype : kWorkingDTypes) {
    for (int64_t width : kWidths) {
      const int64_t rows = 4;
      const Array x = RandomArray(dtype, rows * width, 5), weight = RandomArray(dtype, width, 6);
      Array out(dtype, rows * width);
      RmsNorm(pool, {rows, width, width, width, dtype, dtype}, x.ptr(), weight.ptr(), 1e-5f, out.ptr());
      for (int64_t row = 0; row < rows; ++row) {
        const double scale = RowScale(x, row, width, 0, 1e-5);
        for (int64_t i = 0; i < width; ++i) {
          const double expected = x[row * width + i] * scale * weight[i];
          EXPECT_NEAR(out[row * width + i], expected, Tolerance(dtype, expected)) << DTypeName(dtype) << " width " << width;
        }
      }
    }
  }
}

TEST(NormTest, AnOffsetIsAddedToTheWeightsInFp32) {
  ThreadPool pool(2);
  for (const DType weight_dtype : kWorkingDTypes) {
    constexpr int64_t kRows = 3, kWidth = 77;
    const Array x = RandomArray(DType::kF32, kRows * kWidth, 5), weight = RandomArray(weight_dtype, kWidth, 6, 0.01f);
    Array sums(DType::kF32, kWidth), expected(DType::kF32, kRows * kWidth), out(DType::kF32, kRows * kWidth);
    for (int64_t i = 0; i < kWidth; ++i) sums.Set(i, 1.0f + weight[i]);
    NormShape shape{kRows, kWidth, kWidth, kWidth, DType::kF32, DType::kF32};
    RmsNorm(pool, shape, x.ptr(), sums.ptr(), 1e-5f, expected.ptr());
    shape.weight_dtype = weight_dtype;
    shape.weight_offset = 1.0f;
    RmsNorm(pool, shape, x.ptr(), weight.ptr(), 1e-5f, out.ptr());
    EXPECT_EQ(out.data, expected.data) << DTypeName(weight_dtype);
  }
}

TEST(NormTest, WhatIsAddedAfterItsNormIsRoundedOnce) {
  for (const DType dtype : kWorkingDTypes) {
    constexpr int64_t kRows = 3, kWidth = 77, kStride = 80;
    const std::vector<float> y = RandomFloats(kRows * kWidth, 7, 3.0f);
    const Array weight = RandomArray(DType::kBF16, kWidth, 8), before = RandomArray(dtype, kRows * kStride, 9);
    const NormShape shape{kRows, kWidth, kWidth, kStride, dtype, DType::kBF16, 1.0f};
    ForEachTarget([&](const std::string& target) {
      ThreadPool pool(2);
      Array x = before;
      RmsNormAddTo(pool, shape, y.data(), weight.ptr(), 1e-5f, 0.5f, x.ptr());
      for (int64_t row = 0; row < kRows; ++row) {
        double squares = 0;
        for (int64_t i = 0; i < kWidth; ++i) squares += static_cast<double>(y[row * kWidth + i]) * y[row * kWidth + i];
        const double scale = 1 / std::sqrt(squares / kWidth + 1e-5);
        for (int64_t i = 0; i < kStride; ++i) {
          const int64_t at = row * kStride + i;
          const double sum = i < kWidth ? before[at] + 0.5 * y[row * kWidth + i] * scale * (1.0 + weight[i]) : before[at];
          EXPECT_NEAR(x[at], sum, i < kWidth ? Tolerance(dtype, sum) : 0) << target << " row " << row << " column " << i;
        }
      }
    });
  }
}

TEST(NormTest, AFactorMultipliesTheSumBeforeItIsRounded) {
  ThreadPool pool(1);
  constexpr int64_t kWidth = 77;
  const std::vector<float> y = RandomFloats(kWidth, 7, 3.0f);
  const Array weight = RandomArray(DType::kF32, kWidth, 8);
  Array plain = RandomArray(DType::kF32, kWidth, 9), scaled = plain;
  const NormShape shape{1, kWidth, kWidth, kWidth, DType::kF32, DType::kF32};
  RmsNormAddTo(pool, shape, y.data(), weight.ptr(), 1e-5f, 0.5f, plain.ptr());
  RmsNormAddTo(pool, shape, y.data(), weight.ptr(), 1e-5f, 0.5f, scaled.ptr(), 0.75f);
  for (int64_t i = 0; i < kWidth; ++i) EXPECT_EQ(scaled[i], static_cast<float>(plain[i]) * 0.75f) << i;
}

TEST(NormTest, HeadsWithoutWeightsHaveTheBitsOfOnes) {
  ThreadPool pool(1);
  constexpr int64_t kTokens = 2, kHeads = 3, kDim = 21;
  std::vector<float> bare = RandomFloats(kTokens * kHeads * kDim, 4), ones = bare;
  const std::vector<float> weight(kDim, 1.0f);
  const HeadShape shape{kTokens, kHeads, kDim, kHeads * kDim};
  HeadRmsNorm(pool, shape, bare.data(), nullptr, DType::kF32, 1e-6f);
  HeadRmsNorm(pool, shape, ones.data(), weight.data(), DType::kF32, 1e-6f);
  EXPECT_EQ(bare, ones);
}

TEST(NormTest, WeightsOfAnotherDTypeHaveTheBitsOfTheSameValuesInTheRowsDType) {
  ThreadPool pool(2);
  constexpr int64_t kRows = 3, kWidth = 77;
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    for (const DType weight_dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      const Array x = RandomArray(dtype, kRows * kWidth, 5);
      Array same(dtype, kWidth), other(weight_dtype, kWidth), expected(dtype, kRows * kWidth), out(dtype, kRows * kWidth);
      for (int64_t i = 0; i < kWidth; ++i) {
        const float value = static_cast<float>(i % 13 + 1) / 8;  // exact in every dtype
        same.Set(i, value);
        other.Set(i, value);
      }
      RmsNorm(pool, {kRows, kWidth, kWidth, kWidth, dtype, dtype}, x.ptr(), same.ptr(), 1e-5f, expected.ptr());
      RmsNorm(pool, {kRows, kWidth, kWidth, kWidth, dtype, weight_dtype}, x.ptr(), other.ptr(), 1e-5f, out.ptr());
      EXPECT_EQ(out.data, expected.data) << DTypeName(dtype) << " with weights of " << DTypeName(weight_dtype);
      LayerNorm(pool, {kRows, kWidth, kWidth, kWidth, dtype, dtype}, x.ptr(), same.ptr(), same.ptr(), 1e-5f, expected.ptr());
      LayerNorm(pool, {kRows, kWidth, kWidth, kWidth, dtype, weight_dtype}, x.ptr(), other.ptr(), other.ptr(), 1e-5f, out.ptr());
      EXPECT_EQ(out.data, expected.data) << DTypeName(dtype) << " with weights of " << DTypeName(weight_dtype);
    }
  }
}

TEST(NormTest, LayerNormMatchesFp64WithAndWithoutWeights) {
  ThreadPool pool(2);
  for (DType dtype : kWorkingDTypes) {
    for (int64_t width : kWidths) {
      for (bool affine : {false, true}) {
        const int64_t rows = 3;
        Array x = RandomArray(dtype, rows * width, 7);
        for (int64_t i = 0; i < x.size(); ++i) x.Set(i, x[i] + 3.0f);  // a mean that a one-pass variance would suffer from
        const Array weight = RandomArray(dtype, width, 8), bias = RandomArray(dtype, width, 9);
        Array out(dtype, rows * width);
        LayerNorm(pool, {rows, width, width, width, dtype, dtype}, x.ptr(), affine ? weight.ptr() : nullptr, affine ? bias.ptr() : nullptr,
                  1e-5f, out.ptr());
        for (int64_t row = 0; row < rows; ++row) {
          double mean = 0;
          for (int64_t i = 0; i < width; ++i) mean += x[row * width + i] / static_cast<double>(width);
          const double scale = RowScale(x, row, width, mean, 1e-5);
          for (int64_t i = 0; i < width; ++i) {
            const double normal = (x[row * width + i] - mean) * scale;
            const double expected = affine ? normal * weight[i] + bias[i] : normal;
            EXPECT_NEAR(out[row * width + i], expected, Tolerance(dtype, expected, width == 1 ? 1e-3 : 1e-5));
          }
        }
      }
    }
  }
}

TEST(NormTest, HeadRmsNormWorksInPlaceOnStridedHeads) {
  ThreadPool pool(2);
  for (const auto& [head_dim, offset] : std::vector<std::pair<int64_t, float>>{{8, 0.0f}, {64, 1.0f}, {80, 0.0f}, {128, 1.0f}}) {
    const int64_t tokens = 3, heads = 5, stride = heads * head_dim + 7;
    const std::vector<float> before = RandomFloats(tokens * stride, 10);
    const Array weight = RandomArray(DType::kBF16, head_dim, 11);
    std::vector<float> x = before;
    const HeadShape shape{.tokens = tokens, .heads = heads, .head_dim = head_dim, .stride = stride};
    HeadRmsNorm(pool, shape, x.data(), weight.ptr(), DType::kBF16, 1e-6f, offset);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const float* row = &before[t * stride + h * head_dim];
        double squares = 0;
        for (int64_t i = 0; i < head_dim; ++i) squares += static_cast<double>(row[i]) * row[i];
        const double scale = 1 / std::sqrt(squares / head_dim + 1e-6);
        for (int64_t i = 0; i < head_dim; ++i) EXPECT_NEAR(x[t * stride + h * head_dim + i], row[i] * scale * (weight[i] + offset), 1e-5);
      }
      for (int64_t i = heads * head_dim; i < stride; ++i) EXPECT_EQ(x[t * stride + i], before[t * stride + i]);
    }
  }
}

TEST(NormTest, ThreadsRowsAndInstructionSetsChangeNoBit) {
  for (DType dtype : kWorkingDTypes) {
    for (int64_t width : {33L, 576L, 1000L}) {
      const int64_t rows = 70;
      const Array x = RandomArray(dtype, rows * width, 12), weight = RandomArray(dtype, width, 13), bias = RandomArray(dtype, width, 14);
      std::vector<std::vector<std::byte>> results;
      ForEachTarget([&](const std::string&) {
        for (int threads : {1, 2, 3}) {
          ThreadPool pool(threads);
          Array rms(dtype, rows * width), layer(dtype, rows * width);
          RmsNorm(pool, {rows, width, width, width, dtype, dtype}, x.ptr(), weight.ptr(), 1e-5f, rms.ptr());
          LayerNorm(pool, {rows, width, width, width, dtype, dtype}, x.ptr(), weight.ptr(), bias.ptr(), 1e-5f, layer.ptr());
          rms.data.insert(rms.data.end(), layer.data.begin(), layer.data.end());
          results.push_back(rms.data);
        }
      });
      for (const auto& result : results) EXPECT_EQ(result, results[0]) << DTypeName(dtype) << " width " << width;
      ThreadPool pool(1);
      Array alone(dtype, width);
      RmsNorm(pool, {1, width, width, width, dtype, dtype}, x.data.data() + 5 * width * ElementBytes(dtype), weight.ptr(), 1e-5f,
              alone.ptr());
      EXPECT_EQ(0, std::memcmp(alone.ptr(), results[0].data() + 5 * width * ElementBytes(dtype), alone.data.size()));
    }
  }
}

TEST(ActivationTest, ThreadsAndInstructionSetsChangeNoBit) {
  const int64_t tokens = 9, n = 5003;
  const std::vector<float> gate = RandomFloats(tokens * n, 15, 30.0f), up = RandomFloats(tokens * n, 16);
  for (const Activation activation :
       {Activation::kSilu, Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kClampedSwiglu}) {
    for (DType dtype : kWorkingDTypes) {
      std::vector<std::vector<std::byte>> results;
      ForEachTarget([&](const std::string&) {
        for (int threads : {1, 2, 3}) {
          ThreadPool pool(threads);
          Array out(dtype, tokens * n);
          GatedActivation(pool, activation, gate.data(), up.data(), tokens, n, n, out.ptr(), dtype, n, 7.0f);
          results.push_back(out.data);
        }
      });
      for (const auto& result : results) EXPECT_EQ(result, results[0]) << DTypeName(dtype);
    }
  }
}

// ---- Vocabulary

TEST(LogitsTest, ColumnsOfEveryRowAreDivided) {
  const std::vector<float> before = RandomFloats(3 * 50, 22);
  ForEachTarget([&](const std::string& target) {
    ThreadPool pool(2);
    std::vector<float> x = before;
    DivideRows(pool, x.data() + 5, 3, 37, 50, 6.0f);
    for (int64_t i = 0; i < 150; ++i) EXPECT_EQ(x[i], i % 50 >= 5 && i % 50 < 42 ? before[i] / 6.0f : before[i]) << target;
  });
}

TEST(LogitsTest, ColumnsOfEveryRowAreCappedAndKeepTheirSign) {
  constexpr float kCap = 30;
  std::vector<float> before = RandomFloats(150, 19, 60.0f);
  before[7] = 0, before[8] = -0.001f, before[9] = 7.5f, before[10] = -7.4999f, before[11] = 1e30f, before[12] = -INFINITY;
  ForEachTarget([&](const std::string& target) {
    ThreadPool pool(2);
    std::vector<float> x = before;
    CapRows(pool, x.data() + 5, 3, 37, 50, kCap);
    for (int64_t i = 0; i < 150; ++i) {
      const double capped = kCap * std::tanh(static_cast<double>(before[i]) / kCap);
      if (i % 50 < 5 || i % 50 >= 42) {
        EXPECT_EQ(x[i], before[i]) << target;
      } else {
        EXPECT_NEAR(x[i], capped, 1e-6 * std::abs(capped)) << target << " " << before[i];
      }
    }
  });
}

TEST(SoftmaxTest, LogSumExpMatchesFp64OnOddVocabularies) {
  ThreadPool pool(2);
  for (int64_t vocab : {1L, 15L, 1024L, 1025L, 32003L}) {
    const std::vector<float> logits = RandomFloats(vocab, 17, 8.0f);
    std::vector<RangeStatistics> ranges(NumVocabRanges(vocab));
    VocabStatistics(logits.data(), vocab, ranges.data());
    double max = -1e30, sum = 0;
    for (float logit : logits) max = std::max<double>(max, logit);
    for (float logit : logits) sum += std::exp(logit - max);
    EXPECT_NEAR(LogSumExp(ranges.data(), ranges.size()), max + std::log(sum), 1e-6);
  }
}

TEST(SoftmaxTest, ForbiddenIdsCountNothingAndNanShows) {
  ThreadPool pool(1);
  std::vector<float> logits(3000, -kInfinity);
  logits[2500] = 1.5f;
  std::vector<RangeStatistics> ranges(3);
  VocabStatistics(logits.data(), 3000, ranges.data());
  EXPECT_DOUBLE_EQ(LogSumExp(ranges.data(), 3), 1.5);
  logits[7] = kNaN;
  VocabStatistics(logits.data(), 3000, ranges.data());
  EXPECT_TRUE(std::isnan(LogSumExp(ranges.data(), 3)));
}

TEST(SoftmaxTest, InstructionSetsChangeNoBit) {
  const std::vector<float> logits = RandomFloats(5001, 18, 8.0f);
  std::vector<std::vector<RangeStatistics>> results;
  ForEachTarget([&](const std::string&) {
    ThreadPool pool(2);
    results.emplace_back(NumVocabRanges(5001));
    VocabStatistics(logits.data(), 5001, results.back().data());
  });
  for (const auto& result : results) EXPECT_EQ(Bits(result), Bits(results[0]));
}

TEST(TopKTest, ListsTheLargestAndBreaksTiesByLowestId) {
  for (int64_t n : {1L, 7L, 100L, 4099L}) {
    std::vector<float> logits = RandomFloats(n, 19, 3.0f);
    for (float& logit : logits) logit = std::round(logit * 2) / 2;  // many ties
    std::vector<TopEntry> expected(n);
    for (int64_t i = 0; i < n; ++i) expected[i] = {logits[i], static_cast<int32_t>(i)};
    std::stable_sort(expected.begin(), expected.end(), [](const TopEntry& a, const TopEntry& b) { return a.value > b.value; });
    for (int64_t k : {int64_t{1}, int64_t{5}, n}) {
      std::vector<TopEntry> top(k);
      const int64_t count = TopK(logits.data(), n, k, top.data());
      ASSERT_EQ(count, std::min(k, n));
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_EQ(top[i].id, expected[i].id) << "n " << n << " k " << k;
        EXPECT_EQ(top[i].value, expected[i].value);
      }
    }
  }
}

TEST(TopKTest, ReportsNanWhereverItStands) {
  for (int64_t where : {0L, 500L, 1000L}) {
    std::vector<float> logits(1001, 1.0f);
    logits[0] = 9.0f;
    logits[where] = kNaN;
    TopEntry top[1];
    EXPECT_EQ(TopK(logits.data(), 1001, 1, top), -1);
  }
}

}  // namespace
}  // namespace lime::cpu
