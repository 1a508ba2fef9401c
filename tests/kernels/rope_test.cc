// RoPE tables against the published formulas written out a second way, and the rotation against
// complex arithmetic.
#include "kernels/cpu/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>

#include "kernels/cpu/row_ops.h"
#include "tests/kernels/cpu_test_util.h"

namespace lime::cpu {
namespace {

RopeConfig Llama31() {
  return {.type = RopeType::kLlama3,
          .dims = 128,
          .theta = 500000.0,
          .factor = 8.0,
          .low_freq_factor = 1.0,
          .high_freq_factor = 4.0,
          .original_max_position = 8192};
}

TEST(RopeTableTest, DefaultIsThetaToTheMinusTwoIOverD) {
  const RopeTable table({.dims = 64, .theta = 10000.0}, 100);
  for (int64_t p : {0, 1, 99}) {
    for (int64_t i : {0, 5, 31}) {
      const double angle = p / std::pow(10000.0, i / 32.0);
      EXPECT_NEAR(table.cos()[p * 32 + i], std::cos(angle), 1e-7);
      EXPECT_NEAR(table.sin()[p * 32 + i], std::sin(angle), 1e-7);
    }
  }
}

TEST(RopeTableTest, LinearStretchesPositionsByTheFactor) {
  const RopeTable plain({.dims = 64}, 100), stretched({.type = RopeType::kLinear, .dims = 64, .factor = 4.0}, 400);
  for (int64_t p = 0; p < 100; ++p)
    for (int64_t i = 0; i < 32; ++i) EXPECT_NEAR(stretched.cos()[4 * p * 32 + i], plain.cos()[p * 32 + i], 1e-6);
}

TEST(RopeTableTest, ProportionalTurnsTheFirstPairsOfAWholeHead) {
  const RopeTable whole({.dims = 64, .theta = 1e6}, 100),
      part({.type = RopeType::kProportional, .dims = 64, .theta = 1e6, .turning = 16}, 100);
  for (int64_t p = 0; p < 100; ++p) {
    for (int64_t i = 0; i < 32; ++i) {
      EXPECT_EQ(part.cos()[p * 32 + i], i < 8 ? whole.cos()[p * 32 + i] : 1.0f);
      EXPECT_EQ(part.sin()[p * 32 + i], i < 8 ? whole.sin()[p * 32 + i] : 0.0f);
    }
  }
}

// Wavelength form of the definition; the code works in turns per original context.
TEST(RopeTableTest, Llama3KeepsShortDividesLongAndBlendsBetween) {
  const RopeConfig rope = Llama31();
  const std::vector<double> f = RopeInverseFrequencies(rope, 0);
  int kept = 0, divided = 0, blended = 0;
  for (int i = 0; i < 64; ++i) {
    const double base = 1 / std::pow(500000.0, i / 64.0), wavelength = 2 * M_PI / base;
    double expected;
    if (wavelength < 8192 / 4.0) {
      expected = base, ++kept;
    } else if (wavelength > 8192) {
      expected = base / 8, ++divided;
    } else {
      const double smooth = (8192 / wavelength - 1) / (4 - 1);
      expected = (1 - smooth) * base / 8 + smooth * base, ++blended;
    }
    EXPECT_NEAR(f[i] / expected, 1.0, 1e-12) << i;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(blended, 0);
}

TEST(RopeTableTest, DynamicGrowsItsBaseWithThePositionOnlyBeyondTheOriginalContext) {
  const RopeConfig rope{.type = RopeType::kDynamic, .dims = 32, .factor = 2.0, .original_max_position = 64};
  const RopeTable table(rope, 200), plain({.dims = 32}, 64);
  for (int64_t i = 0; i < 64 * 16; ++i) EXPECT_EQ(table.cos()[i], plain.cos()[i]);
  for (int64_t p : {64, 130, 199}) {
    const double theta = 10000.0 * std::pow(2.0 * (p + 1) / 64 - 1, 32.0 / 30.0);
    for (int64_t i = 0; i < 16; ++i) EXPECT_NEAR(table.sin()[p * 16 + i], std::sin(p / std::pow(theta, i / 16.0)), 1e-6);
  }
}

TEST(RopeTableTest, YarnInterpolatesByPartsAndScalesBothTables) {
  // 128 dimensions, base 10000, original 4096, betas 32 and 1: correction dims 20.94 and 45.02,
  // whole range 20 .. 46.
  RopeConfig rope{
      .type = RopeType::kYarn, .dims = 128, .factor = 16.0, .attention_factor = 0.1 * std::log(16.0) + 1, .original_max_position = 4096};
  const std::vector<double> f = RopeInverseFrequencies(rope, 0);
  const auto base = [](int i) { return std::pow(10000.0, -i / 64.0); };
  EXPECT_NEAR(f[20] / base(20), 1.0, 1e-12);
  EXPECT_NEAR(f[46] / base(46), 1.0 / 16, 1e-12);
  EXPECT_NEAR(f[33] / base(33), 0.5 / 16 + 0.5, 1e-12);
  rope.truncate = false;
  const double low = 128 * std::log(4096 / (32 * 2 * M_PI)) / (2 * std::log(10000.0)),
               high = 128 * std::log(4096 / (2 * M_PI)) / (2 * std::log(10000.0));
  const double ramp = (33 - low) / (high - low);
  EXPECT_NEAR(RopeInverseFrequencies(rope, 0)[33] / base(33), ramp / 16 + 1 - ramp, 1e-12);
  const RopeTable table(rope, 1);
  EXPECT_FLOAT_EQ(table.cos()[0], 0.1f * std::log(16.0f) + 1);
  EXPECT_EQ(table.sin()[0], 0.0f);
}

TEST(RopeTableTest, LongRopeDividesFrequenciesByTheFactorsOfShortOrLongSequences) {
  const RopeConfig rope{.type = RopeType::kLongRope,
                        .dims = 4,
                        .attention_factor = 1.25,
                        .original_max_position = 32,
                        .short_factors = {1, 2},
                        .long_factors = {4, 50}};
  const RopeTable shorter(rope, 32), table(rope, 100);
  EXPECT_EQ(shorter.bytes(), 32 * 4 * static_cast<Bytes>(sizeof(float))) << "no sequence can be long";
  EXPECT_EQ(table.bytes(), RopeTable::BytesFor(rope, 100));
  for (int64_t i = 0; i < 32 * 2; ++i) EXPECT_EQ(table.cos()[i], shorter.cos()[i]);
  const auto cosine = [&](int64_t position, int64_t length, int i) { return table.cos()[rope.TableRow(position, length) * 2 + i]; };
  for (const int64_t p : {0, 7, 31}) {
    for (int i = 0; i < 2; ++i) {
      const double f = std::pow(10000.0, -i / 2.0);
      EXPECT_NEAR(cosine(p, 0, i), 1.25 * std::cos(p * f / rope.short_factors[i]), 1e-6);
      EXPECT_EQ(cosine(p, 32, i), cosine(p, 0, i));
      EXPECT_NEAR(cosine(p, 33, i), 1.25 * std::cos(p * f / rope.long_factors[i]), 1e-6) << "all positions of a long sequence";
    }
  }
  EXPECT_NEAR(cosine(99, 100, 0), 1.25 * std::cos(99 / 4.0), 1e-6);
  EXPECT_EQ(cosine(99, 0, 0), cosine(99, 100, 0)) << "there is no other row";
}

Rotations Of(const RopeTable& table) {
  return {.cos = table.cos(), .sin = table.sin(), .half = table.half()};
}

TEST(RopeTableTest, QueryFactorsGrowWithEachMultipleOfTheOriginalContext) {
  const RopeTable plain({.dims = 4}, 100);
  EXPECT_EQ(plain.query_factors(), nullptr);
  const RopeConfig rope = {.dims = 4, .original_max_position = 32, .query_beta = 0.1};
  const RopeTable table(rope, 100);
  EXPECT_EQ(table.bytes(), RopeTable::BytesFor(rope, 100));
  EXPECT_EQ(table.bytes(), plain.bytes() + 100 * static_cast<Bytes>(sizeof(float)));
  for (const int p : {0, 31, 32, 63, 64, 99})
    EXPECT_EQ(table.query_factors()[p], static_cast<float>(1 + 0.1 * std::log(p < 32 ? 1.0 : p < 64 ? 2.0 : p < 96 ? 3.0 : 4.0))) << p;
}

TEST(RopeTest, FactorsByPositionMultiplyAllHeadsOfAToken) {
  ThreadPool pool(2);
  constexpr int64_t kHeads = 3, kDim = 20, kStride = 64;
  const std::vector<float> factors = {1.0f, 1.5f, 1.25f};
  const std::vector<int32_t> positions = {2, 0, 1};
  std::vector<float> x(3 * kStride);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) + 0.5f;
  const std::vector<float> before = x;
  ScaleHeads(pool, {.tokens = 3, .heads = kHeads, .head_dim = kDim, .stride = kStride}, x.data(), factors.data(), positions.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const bool in_heads = i % kStride < kHeads * kDim;
    EXPECT_EQ(x[i], before[i] * (in_heads ? factors[static_cast<size_t>(positions[i / kStride])] : 1.0f)) << i;
  }
}

TEST(RopeTest, RotatesPairsOfTheTwoHalvesAndNothingBehindThem) {
  ThreadPool pool(2);
  for (const auto& [head_dim, dims] :
       std::vector<std::pair<int64_t, int64_t>>{{8, 8}, {64, 64}, {80, 80}, {96, 96}, {128, 128}, {64, 16}, {16, 4}, {96, 72}}) {
    const int64_t tokens = 4, heads = 3, half = dims / 2, stride = heads * head_dim + 3;
    const RopeTable table({.dims = dims}, 64);
    const std::vector<int32_t> positions = {0, 5, 63, 7};
    const std::vector<float> before = RandomFloats(tokens * stride, 20);
    std::vector<float> x = before;
    ApplyRope(pool, {.tokens = tokens, .heads = heads, .head_dim = head_dim, .stride = stride}, x.data(), Of(table), positions.data());
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t head = t * stride + h * head_dim;
        for (int64_t d = 0; d < half; ++d) {
          const int64_t at = head + d;
          const std::complex<double> turned =
              std::complex<double>(before[at], before[at + half]) * std::polar(1.0, positions[t] * std::pow(10000.0, -2.0 * d / dims));
          EXPECT_NEAR(x[at], turned.real(), 2e-6);
          EXPECT_NEAR(x[at + half], turned.imag(), 2e-6);
        }
        for (int64_t d = dims; d < head_dim; ++d) EXPECT_EQ(x[head + d], before[head + d]);
      }
    }
  }
}

TEST(RopeTest, ThreadsAndInstructionSetsChangeNoBit) {
  const int64_t tokens = 50, heads = 7, head_dim = 80;
  const RopeTable table({.dims = head_dim}, 64);
  std::vector<int32_t> positions(tokens);
  for (int64_t t = 0; t < tokens; ++t) positions[t] = static_cast<int32_t>(t);
  const std::vector<float> before = RandomFloats(tokens * heads * head_dim, 21);
  std::vector<std::vector<float>> results;
  ForEachTarget([&](const std::string&) {
    for (int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      results.push_back(before);
      ApplyRope(pool, {.tokens = tokens, .heads = heads, .head_dim = head_dim, .stride = heads * head_dim}, results.back().data(),
                Of(table), positions.data());
    }
  });
  for (const auto& result : results) EXPECT_EQ(Bits(result), Bits(results[0]));
}

}  // namespace
}  // namespace lime::cpu
