// Attempts to break the bound: every z that a layer computes must be at most its bound, whatever the
// weights and inputs. And the bound must be of use.
#include "common/proven_zeros/proven_zeros.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/float_bits.h"
#include "planner/base/random.h"
#include "tests/cases.h"
#include "tests/scalar_sums.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

float InBf16(double value) {
  return ToFloat(FromFloat<BF16>(static_cast<float>(value)));
}

double Normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.Uniform();
  return sum;
}

std::vector<float> RandomVector(int64_t size, double scale, Random& random) {
  std::vector<float> values;
  for (int64_t i = 0; i < size; ++i) values.push_back(InBf16(scale * Normal(random)));
  return values;
}

// A layer with its weights, and what it computes.
struct TestLayer {
  int64_t rows = 0, cols = 0;
  SumOrder order = SumOrder::kPortable;
  int bits = 8;
  std::vector<float> weights, bias;
  InputFrame frame;

  std::span<const float> Row(int64_t row) const {
    return std::span(weights).subspan(static_cast<size_t>(row * cols), static_cast<size_t>(cols));
  }
  float Z(int64_t row, std::span<const float> x) const {
    const float sum = SumInOrder(order, Row(row), x);
    return bias.empty() ? sum : sum + bias[static_cast<size_t>(row)];
  }
  DeciderCopy Copy() const {
    absl::StatusOr<DeciderCopy> copy = DeciderCopy::Create({.rows = rows, .cols = cols, .weights = weights, .bits = bits}, frame);
    EXPECT_TRUE(copy.ok()) << copy.status().message();
    return *std::move(copy);
  }
  ProvenZeros Prover(const DeciderCopy& copy) const { return {copy.view(), order, bias}; }
};

std::vector<double> CodesOf(const DeciderView& view, int64_t row) {
  std::vector<double> codes;
  for (int64_t k = 0; k < view.cols; ++k) codes.push_back(view.CodeAt(row, k));
  return codes;
}

TestLayer RandomLayer(int64_t rows, int64_t cols, int64_t directions, Random& random) {
  TestLayer layer{.rows = rows, .cols = cols};
  layer.weights = RandomVector(rows * cols, 1, random);
  layer.bias = RandomVector(rows, 1, random);
  layer.frame.mean = RandomVector(cols, 1, random);
  layer.frame.directions = RandomVector(directions * cols, 1 / std::sqrt(static_cast<double>(cols)), random);
  return layer;
}

void ExpectSound(const TestLayer& layer, const DeciderCopy& copy, std::span<const float> x) {
  ProvenZeros zeros = layer.Prover(copy);
  zeros.SetInput(x);
  for (int64_t row = 0; row < layer.rows; ++row) {
    const float z = layer.Z(row, x);
    const ZBound bound = zeros.BoundOf(row);
    ASSERT_GE(bound.slack, 0);
    for (const float threshold : {0.0f, -0.0f, 0.01f, -3.0f, z}) {
      if (bound.Proves(threshold)) {
        ASSERT_LE(z, threshold) << "row " << row;  // also fails for NaN
      }
    }
  }
}

// A number of any size: subnormal, tiny, usual, huge.
float AnySize(Random& random) {
  const int exponent = random.Chance(60) ? random.Below(12) - 6 : random.Below(276) - 148;
  return InBf16(std::ldexp(Normal(random), exponent));
}

TEST(ProvenZerosTest, NoRandomLayerBreaksTheBound) {
  for (int seed = 0; seed < Cases(300, 20000); ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<uint64_t>(seed));
    TestLayer layer = RandomLayer(4, 1 + random.Below(200), random.Below(4), random);
    layer.order = random.Chance(50) ? SumOrder::kPortable : SumOrder::kBf16Dot;
    layer.bits = kLeastCopyBits + random.Below(kMostCopyBits - kLeastCopyBits + 1);
    const DeciderCopy copy = layer.Copy();
    for (int i = 0; i < 4; ++i) {
      ExpectSound(layer, copy, RandomVector(layer.cols, std::ldexp(1.0, random.Below(40) - 20), random));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(ProvenZerosTest, NumbersOfAllSizesDoNotBreakTheBound) {
  int finite = 0;
  for (int seed = 0; seed < Cases(1500, 50000); ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<uint64_t>(seed) + 77);
    const auto fill = [&](std::vector<float>& values) {
      const int kind = random.Below(3);  // all sizes, all alike, all small
      const float one = AnySize(random);
      for (float& value : values)
        value = kind == 0 ? AnySize(random) : InBf16(one * (kind == 1 ? Normal(random) : 0x1p-100 * Normal(random)));
      for (float& value : values) value = std::isfinite(value) ? value : 1.0f;
    };
    TestLayer layer = RandomLayer(3, 1 + random.Below(90), random.Below(3), random);
    layer.order = random.Chance(50) ? SumOrder::kPortable : SumOrder::kBf16Dot;
    layer.bits = kLeastCopyBits + random.Below(kMostCopyBits - kLeastCopyBits + 1);
    fill(layer.weights), fill(layer.bias);
    if (random.Chance(30)) fill(layer.frame.mean);
    if (random.Chance(30)) fill(layer.frame.directions);
    std::vector<float> x(static_cast<size_t>(layer.cols));
    fill(x);
    ExpectSound(layer, layer.Copy(), x);
    if (HasFatalFailure()) return;
    finite += std::isfinite(layer.Z(0, x)) ? 1 : 0;
  }
  EXPECT_GT(finite, 100);
}

// The input that a copy sees worst: along its error e, with just enough of -q that the copy says "far
// below zero" while z is above zero.
TEST(ProvenZerosTest, AnInputAlongTheErrorIsNotProvenAndHalfTheBoundWouldBeWrong) {
  for (const SumOrder order : {SumOrder::kPortable, SumOrder::kBf16Dot}) {
    for (const int bits : {4, 5, 6, 8}) {
      SCOPED_TRACE(bits);
      Random random(static_cast<uint64_t>(bits));
      TestLayer layer{.rows = 1, .cols = 256, .order = order, .bits = bits};
      layer.weights = RandomVector(256, 1, random);
      layer.frame.mean.assign(256, 0.0f);
      const DeciderCopy copy = layer.Copy();
      double ee = 0, eq = 0, qq = 0;
      std::vector<double> e, q;
      for (size_t k = 0; k < 256; ++k) {
        q.push_back(copy.view().CodeAt(0, static_cast<int64_t>(k)) * double{copy.view().of_rows[0].scale});
        e.push_back(double{layer.weights[k]} - q[k]);
        ee += e[k] * e[k], eq += e[k] * q[k], qq += q[k] * q[k];
      }
      const double c = (eq + 0.9 * ee) / (qq + eq);  // so that w.x = |e|^2 / 10
      std::vector<float> x;
      for (size_t k = 0; k < 256; ++k) x.push_back(InBf16(e[k] - c * q[k]));
      ProvenZeros zeros = layer.Prover(copy);
      zeros.SetInput(x);
      const ZBound bound = zeros.BoundOf(0);
      ASSERT_GT(layer.Z(0, x), 0) << "the input is not what the test is about";
      EXPECT_FALSE(bound.Proves(0));
      EXPECT_LE(bound.estimate + bound.slack / 2, 0) << "half of the slack must give a wrong proof here";
      EXPECT_LT(bound.slack, 2 * ee) << "and there is not much more slack than needed";
    }
  }
}

// The same for what a copy keeps of its error: the directions are all axes, so only the rounding of
// `kept` is missing.
TEST(ProvenZerosTest, AnInputAlongTheRoundingOfTheKeptErrorIsNotProven) {
  constexpr size_t kCols = 64;
  Random random(9);
  TestLayer layer{.rows = 1, .cols = kCols, .bits = 4};
  layer.weights = RandomVector(kCols, 1, random);
  layer.frame.mean.assign(kCols, 0.0f);
  layer.frame.directions.assign(kCols * kCols, 0.0f);
  for (size_t k = 0; k < kCols; ++k) layer.frame.directions[k * kCols + k] = 1;
  const DeciderCopy copy = layer.Copy();
  const CopiedRow& row = copy.view().of_rows[0];
  double mm = 0, mc = 0, cc = 0;  // products of what is missing and of what the copy has
  std::vector<double> missing, has;
  for (size_t k = 0; k < kCols; ++k) {
    has.push_back(copy.view().CodeAt(0, static_cast<int64_t>(k)) * double{row.scale} + copy.view().kept[k] * double{row.kept_scale});
    missing.push_back(double{layer.weights[k]} - has[k]);
    mm += missing[k] * missing[k], mc += missing[k] * has[k], cc += has[k] * has[k];
  }
  const double c = (mc + 0.9 * mm) / (cc + mc);
  std::vector<float> x;
  for (size_t k = 0; k < kCols; ++k) x.push_back(static_cast<float>(missing[k] - c * has[k]));
  ProvenZeros zeros = layer.Prover(copy);
  zeros.SetInput(x);
  const ZBound bound = zeros.BoundOf(0);
  ASSERT_GT(layer.Z(0, x), 0);
  EXPECT_LT(bound.estimate, 0);
  EXPECT_FALSE(bound.Proves(0));
  EXPECT_LT(bound.slack, 2 * mm);
}

// The copy is exact, and the sum of the layer rounds upward 63 times: the exact sum is negative.
TEST(ProvenZerosTest, TheRoundingOfTheLayerIsInTheBound) {
  TestLayer layer{.rows = 1, .cols = 2048};
  layer.weights.assign(2048, 127.0f);
  layer.frame.mean.assign(2048, 0.0f);
  std::vector<float> x(2048, 0.0f);
  x[0] = 1;
  for (size_t k = 32; k < 2048; k += 32) x[k] = -0x1p-25f;  // lane 0 loses them
  x[16] = -1, x[48] = 0x1p-24f;                             // lane 16 does not
  const DeciderCopy copy = layer.Copy();
  EXPECT_EQ(copy.view().of_rows[0].error, 0);
  ProvenZeros zeros = layer.Prover(copy);
  zeros.SetInput(x);
  const ZBound bound = zeros.BoundOf(0);
  EXPECT_LT(bound.estimate, 0);
  EXPECT_GT(layer.Z(0, x), 0);
  EXPECT_FALSE(bound.Proves(0));
}

// The exact sum is far below zero, but a lane overflows to infinity before.
TEST(ProvenZerosTest, SumsThatCouldOverflowAreNotProven) {
  TestLayer layer{.rows = 1, .cols = 129};
  layer.weights.assign(129, 0.0f);
  layer.frame.mean.assign(129, 0.0f);
  std::vector<float> x(129, 0.0f);
  for (const size_t k : {0, 32, 64, 96, 128}) {  // of lane 0
    layer.weights[k] = k < 64 ? 0x1.fcp99f : -0x1.fcp99f;
    x[k] = 0x1.8p27f;
  }
  const DeciderCopy copy = layer.Copy();
  EXPECT_EQ(copy.view().of_rows[0].error, 0);
  ProvenZeros zeros = layer.Prover(copy);
  zeros.SetInput(x);
  EXPECT_LT(zeros.CodeProduct(0) * double{copy.view().of_rows[0].scale}, -1e38);
  EXPECT_FALSE(layer.Z(0, x) <= 0) << layer.Z(0, x);
  EXPECT_FALSE(zeros.BoundOf(0).Proves(0));
}

// One order computes with a subnormal weight, the other one reads it as zero.
TEST(ProvenZerosTest, SubnormalWeightsCountAsTheOrderReadsThem) {
  for (const SumOrder order : {SumOrder::kPortable, SumOrder::kBf16Dot}) {
    TestLayer layer{.rows = 2, .cols = 2, .order = order};
    layer.weights = {0x1p-127f, -0x1p-20f, -0x1p-127f, 0x1p-20f};
    layer.frame.mean = {0, 0};
    layer.frame.directions = {1, 0};                   // a copy keeps the small weight as an error along it
    const std::vector<float> x = {0x1p127f, 0x1p10f};  // products +-1 and +-2^-10
    EXPECT_EQ(layer.Z(0, x) > 0, order == SumOrder::kPortable);
    EXPECT_EQ(layer.Z(1, x) > 0, order == SumOrder::kBf16Dot);
    ExpectSound(layer, layer.Copy(), x);
  }
}

TEST(ProvenZerosTest, NanAndInfinityProveNothing) {
  Random random(3);
  TestLayer layer = RandomLayer(5, 40, 2, random);
  layer.bias.assign(5, -1000.0f);
  std::fill(layer.weights.end() - 40, layer.weights.end(), 0.0f);  // 0 * infinity is NaN, too
  const DeciderCopy copy = layer.Copy();
  ProvenZeros zeros = layer.Prover(copy);
  std::vector<float> x = RandomVector(40, 1, random);
  zeros.SetInput(x);
  for (int64_t row = 0; row < 5; ++row) EXPECT_TRUE(zeros.BoundOf(row).Proves(0)) << row;
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    std::vector<float> broken = x;
    broken[7] = bad;
    zeros.SetInput(broken);
    for (int64_t row = 0; row < 5; ++row) EXPECT_FALSE(zeros.BoundOf(row).Proves(0)) << bad;
    EXPECT_FALSE(zeros.BoundOf(0, -kInfinity, 0).Proves(0));
  }
  zeros.SetInput(x);
  EXPECT_FALSE(zeros.BoundOf(0, std::nan(""), 0).Proves(0));
  layer.bias[0] = kNan;
  const DeciderCopy without_bias = layer.Copy();
  ProvenZeros unknown = layer.Prover(without_bias);
  unknown.SetInput(x);
  EXPECT_FALSE(unknown.BoundOf(0).Proves(0));
}

// ---- Use

// Inputs near a few directions, as those of MLPs are, and neurons of which one in ten is active.
struct Concentrated {
  TestLayer layer;
  std::vector<std::vector<float>> inputs;

  Concentrated(int64_t rows, int64_t cols, int64_t directions, bool known) {
    Random random(11);
    layer = RandomLayer(rows, cols, directions, random);
    for (float& bias : layer.bias) bias = InBf16(-1.3 * std::sqrt(static_cast<double>(directions)) + 0.3 * Normal(random));
    for (int i = 0; i < 20; ++i) {
      inputs.emplace_back();
      std::vector<double> at(static_cast<size_t>(directions));
      for (double& one : at) one = Normal(random);
      for (size_t k = 0; k < static_cast<size_t>(cols); ++k) {
        double value = 0.02 * Normal(random);
        for (size_t j = 0; j < at.size(); ++j) value += at[j] * layer.frame.directions[j * static_cast<size_t>(cols) + k];
        inputs.back().push_back(InBf16(value));
      }
    }
    layer.frame.mean.assign(static_cast<size_t>(cols), 0.0f);
    if (!known) layer.frame.directions.clear();
  }

  // Share of the zeros that are proven.
  double Proven(int bits) {
    layer.bits = bits;
    const DeciderCopy copy = layer.Copy();
    ProvenZeros prover = layer.Prover(copy);
    int zeros = 0, proven = 0;
    for (const std::vector<float>& x : inputs) {
      std::vector<bool> unproven(static_cast<size_t>(layer.rows));
      prover.SetInput(x);
      prover.MarkUnproven(0, unproven);
      for (int64_t row = 0; row < layer.rows; ++row) {
        const bool is_zero = layer.Z(row, x) <= 0;
        zeros += is_zero ? 1 : 0;
        proven += unproven[static_cast<size_t>(row)] ? 0 : 1;
        EXPECT_TRUE(is_zero || unproven[static_cast<size_t>(row)]);
      }
    }
    EXPECT_GT(zeros, 10 * std::ssize(inputs));
    return static_cast<double>(proven) / zeros;
  }
};

TEST(ProvenZerosTest, MostZerosAreProvenAndMoreBitsProveMore) {
  Concentrated known(64, 128, 8, true), unknown(64, 128, 8, false);
  double last = 0;
  for (const int bits : {4, 5, 6, 8}) {
    const double proven = known.Proven(bits);
    EXPECT_GT(proven, last) << bits;
    EXPECT_GT(proven, unknown.Proven(bits)) << "directions must help, " << bits << " bits";
    last = proven;
  }
  EXPECT_GT(known.Proven(5), 0.9);
  EXPECT_GT(known.Proven(8), 0.98);
}

TEST(ProvenZerosTest, ANeuronIsLeftOutOnlyIfNoInputNeedsIt) {
  TestLayer layer{.rows = 3, .cols = 1};
  layer.weights = {1, -1, 0};
  layer.bias = {0, 0, -1};
  layer.frame.mean = {0};
  const DeciderCopy copy = layer.Copy();
  ProvenZeros zeros = layer.Prover(copy);
  std::vector<bool> unproven(3);
  for (const float x : {1.0f, -1.0f}) {
    zeros.SetInput({&x, 1});
    zeros.MarkUnproven(0, unproven);
  }
  EXPECT_EQ(unproven, (std::vector<bool>{true, true, false}));
  std::vector<bool> above_two(3);  // FATReLU
  zeros.MarkUnproven(2, above_two);
  EXPECT_EQ(above_two, std::vector<bool>(3));
}

// ---- Copies

TEST(DeciderCopyTest, EveryElementOfTheCopyIsExactInFp32AndNotSubnormal) {
  Random random(5);
  TestLayer layer{.rows = 200, .cols = 16};
  for (int i = 0; i < 200 * 16; ++i) layer.weights.push_back(std::isfinite(AnySize(random)) ? AnySize(random) : 0.0f);
  for (float& weight : layer.weights) weight = std::isfinite(weight) ? weight : 1.0f;
  layer.frame.mean.assign(16, 0.0f);
  const DeciderCopy copy = layer.Copy();
  for (int64_t row = 0; row < 200; ++row) {
    for (const double code : CodesOf(copy.view(), row)) {
      const double exact = code * double{copy.view().of_rows[row].scale};
      ASSERT_EQ(double{static_cast<float>(exact)}, exact);
      ASSERT_TRUE(exact == 0 || std::abs(exact) >= double{std::numeric_limits<float>::min()});
    }
  }
}

TEST(DeciderCopyTest, WhatHasNoProofIsRefusedByName) {
  Random random(5);
  const TestLayer good = RandomLayer(2, 8, 1, random);
  const auto refused = [&](auto change) {
    TestLayer layer = good;
    change(layer);
    return std::string(
        DeciderCopy::Create({.rows = layer.rows, .cols = layer.cols, .weights = layer.weights, .bits = layer.bits}, layer.frame)
            .status()
            .message());
  };
  EXPECT_EQ(refused([](TestLayer&) {}), "");
  EXPECT_THAT(refused([](TestLayer& layer) { layer.cols = 0; }), HasSubstr("0 columns"));
  EXPECT_THAT(refused([](TestLayer& layer) { layer.rows = 0; }), HasSubstr("0 rows"));
  EXPECT_THAT(refused([](TestLayer& layer) { layer.rows = int64_t{1} << 62; }), HasSubstr("at most"));
  EXPECT_THAT(refused([](TestLayer& layer) { layer.rows = 3; }), HasSubstr("16 weights"));
  EXPECT_THAT(refused([](TestLayer& layer) { layer.bits = 9; }), HasSubstr("9 bits"));
  EXPECT_THAT(refused([](TestLayer& layer) { layer.bits = 3; }), HasSubstr("3 bits"));
  EXPECT_THAT(refused([](TestLayer& layer) { layer.frame.mean.pop_back(); }), HasSubstr("a mean of 7"));
  EXPECT_THAT(refused([](TestLayer& layer) { layer.frame.directions.pop_back(); }), HasSubstr("directions of 7"));
  EXPECT_THAT(refused([](TestLayer& layer) { layer.weights[3] = kNan; }), HasSubstr("weight is not finite"));
  EXPECT_THAT(refused([](TestLayer& layer) { layer.frame.mean[3] = kInfinity; }), HasSubstr("mean or direction"));
}

}  // namespace
}  // namespace lime
