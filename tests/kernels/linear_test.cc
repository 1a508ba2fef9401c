#include "kernels/cpu/linear/linear.h"

#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/linear/linear_bf16.h"
#include "planner/base/float_bits.h"
#include "planner/base/small_floats.h"
#include "tests/cases.h"
#include "tests/kernels/random_floats.h"
#include "tests/skips.h"

namespace lime::cpu {
namespace {

using Bytes = std::vector<char>;

Bytes FromFloats(const std::vector<float>& values, DType dtype) {
  Bytes bytes(values.size() * ElementBytes(dtype));
  WithWorkingType(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t i = 0; i < values.size(); ++i) {
      const T element = FromFloat<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return bytes;
}

float Element(const Bytes& bytes, DType dtype, int64_t i) {
  float value = 0;
  WithWorkingType(dtype, [&](auto type) {
    decltype(type) element;
    std::memcpy(&element, bytes.data() + i * sizeof(element), sizeof(element));
    value = ToFloat(element);
  });
  return value;
}

// A format that weights can have.
struct Format {
  DType dtype = DType::kBF16;
  int bits = 0;
  int group_size = 0;
  DType scale_dtype = DType::kBF16;
  Numerics numerics = Numerics::kAuto;
  int64_t scale_rows = 1;     // fp8
  bool scale_of_row = false;  // fp8: one scale for all columns

  bool IsFp8() const { return dtype == DType::kF8E4M3; }
  // What a number of columns must be a multiple of.
  int64_t Multiple() const { return bits == 0 ? 1 : IsFp8() ? 32 : group_size; }
  std::string Name() const {
    const std::string order = numerics == Numerics::kPortable ? "_portable" : numerics == Numerics::kEmulatedBf16 ? "_emulated" : "";
    std::string name(DTypeName(dtype));
    if (bits != 0) name = absl::StrCat("q", bits, "g", group_size, std::string(DTypeName(scale_dtype)));
    if (dtype == DType::kU8) name = "mxfp4";
    if (IsFp8()) name = absl::StrCat("fp8", std::string(DTypeName(scale_dtype)), "r", scale_rows, scale_of_row ? "row" : "");
    return absl::StrCat(name, order);
  }
};

// Weights with what owns their memory, which ends where the weights end, and their exact values.
struct Weights {
  Matrix matrix;
  Bytes data, scales, biases;
  std::vector<double> exact;  // [rows, cols]
};

// Random fp4 with random exponents; every code of both occurs.
void FillMxfp4(Weights& w, uint32_t seed) {
  const auto [rows, cols] = std::pair(w.matrix.rows, w.matrix.cols);
  std::mt19937 rng(seed);
  w.data.resize(rows * cols / 2);
  for (char& byte : w.data) byte = static_cast<char>(rng());
  w.scales.resize(rows * cols / 32);
  for (char& code : w.scales) code = static_cast<char>(120 + rng() % 10);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float value = kFp4Values[static_cast<uint8_t>(w.data[i / 2]) >> (i % 2 * 4) & 15];
    w.exact[i] = double{value} * std::ldexp(1.0, static_cast<uint8_t>(w.scales[i / 32]) - 127);
  }
}

// Random fp8 codes but NaN, with random scales.
void FillFp8(const Format& format, Weights& w, uint32_t seed) {
  const auto [rows, cols] = std::pair(w.matrix.rows, w.matrix.cols);
  std::mt19937 rng(seed);
  w.matrix.scale_rows = format.scale_rows;
  w.matrix.scale_cols = format.scale_of_row ? 1 : w.matrix.Groups();
  w.data.resize(rows * cols);
  for (char& code : w.data) {
    do code = static_cast<char>(rng());
    while ((code & 0x7f) == 0x7f);
  }
  w.scales = FromFloats(RandomFloats(((rows - 1) / format.scale_rows + 1) * w.matrix.scale_cols, seed + 1, 0.01f), format.scale_dtype);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t at = i / cols / format.scale_rows * w.matrix.scale_cols + (format.scale_of_row ? 0 : i % cols / 128);
    w.exact[i] = double{Fp8Value(static_cast<uint8_t>(w.data[i]))} * Element(w.scales, format.scale_dtype, at);
  }
}

std::unique_ptr<Weights> MakeWeights(const Format& format, int64_t rows, int64_t cols, uint32_t seed) {
  auto w = std::make_unique<Weights>();
  w->matrix = {.rows = rows,
               .cols = cols,
               .dtype = format.dtype,
               .bits = format.bits,
               .group_size = format.group_size,
               .scale_dtype = format.scale_dtype};
  w->exact.resize(rows * cols);
  if (format.bits == 0) {
    w->data = FromFloats(RandomFloats(rows * cols, seed), format.dtype);
    for (int64_t i = 0; i < rows * cols; ++i) w->exact[i] = Element(w->data, format.dtype, i);
  } else if (format.dtype == DType::kU8) {
    FillMxfp4(*w, seed);
  } else if (format.IsFp8()) {
    FillFp8(format, *w, seed);
  } else {
    w->matrix.dtype = DType::kU32;
    const int64_t groups = cols / format.group_size;
    w->scales = FromFloats(RandomFloats(rows * groups, seed + 1, 0.1f), format.scale_dtype);
    w->biases = FromFloats(RandomFloats(rows * groups, seed + 2), format.scale_dtype);
    w->data.resize(rows * w->matrix.RowBytes());
    std::mt19937 rng(seed);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < cols; ++k) {
        const uint32_t q = rng() & ((1u << format.bits) - 1);
        for (int bit = 0; bit < format.bits; ++bit) {
          const int64_t at = k * format.bits + bit;
          w->data[r * w->matrix.RowBytes() + at / 8] |= static_cast<char>((q >> bit & 1) << (at % 8));
        }
        const int64_t group = r * groups + k / format.group_size;
        w->exact[r * cols + k] = double{Element(w->scales, format.scale_dtype, group)} * q + Element(w->biases, format.scale_dtype, group);
      }
    }
  }
  w->matrix.data = w->data.data();
  w->matrix.scales = w->scales.data();
  w->matrix.biases = w->biases.data();
  return w;
}

struct Call {
  DType x_dtype = DType::kBF16;
  int64_t tokens = 1;
  int threads = 1;
  const void* bias = nullptr;
  Numerics numerics = Numerics::kAuto;
};

// y of one layer, [tokens, rows].
std::vector<float> Apply(const Matrix& w, const Bytes& x, const Call& call) {
  ThreadPool pool(call.threads);
  LinearWorkspace ws(call.threads, call.tokens, w.cols, call.numerics);
  std::vector<float> y(call.tokens * w.rows, -1.0f);
  const LinearTask task{.weight = &w, .bias = call.bias, .out = y.data(), .out_stride = w.rows};
  Linear(pool, ws, x.data(), call.x_dtype, call.tokens, w.cols, {&task, 1});
  return y;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Expects y to be x W^T within the rounding of `cols` fused multiply-adds spread over 32 lanes.
void ExpectClose(const Weights& w, const Bytes& x, DType x_dtype, int64_t tokens, const std::vector<float>& y) {
  const auto [rows, cols] = std::pair(w.matrix.rows, w.matrix.cols);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < cols; ++k) {
        const double product = w.exact[r * cols + k] * Element(x, x_dtype, t * cols + k);
        sum += product;
        magnitude += std::abs(product);
      }
      // The worst case of the order; one more unit for a packed weight's rounding.
      const int64_t units = cols / 32 + 8;
      const double bound = static_cast<double>(units) * 0x1p-24 * magnitude;
      ASSERT_NEAR(y[t * rows + r], sum, bound) << "token " << t << " row " << r << " cols " << cols;
    }
  }
}

std::vector<Format> AllFormats() {
  std::vector<Format> formats = {{DType::kF32}, {DType::kF16}, {DType::kBF16}};
  for (Numerics numerics : {Numerics::kPortable, Numerics::kEmulatedBf16}) formats.push_back({.numerics = numerics});
  for (int bits : {3, 4, 6, 8}) {
    for (int group : {32, 64, 128}) {
      for (Numerics numerics : {Numerics::kBf16Dot, Numerics::kPortable, Numerics::kEmulatedBf16}) {
        formats.push_back({.bits = bits, .group_size = group, .numerics = numerics});
      }
    }
  }
  for (DType scale : {DType::kF16, DType::kF32}) formats.push_back({.bits = 4, .group_size = 64, .scale_dtype = scale});
  for (Numerics numerics : {Numerics::kBf16Dot, Numerics::kPortable, Numerics::kEmulatedBf16}) {
    formats.push_back({.dtype = DType::kU8, .bits = 4, .group_size = 32, .scale_dtype = DType::kU8, .numerics = numerics});
    const Format fp8{.dtype = DType::kF8E4M3, .bits = 8, .group_size = 128, .numerics = numerics};
    for (int64_t scale_rows : {1, 20, 1000}) {  // as many rows as in no, some and all blocks of the kernels
      Format blocks = fp8, rows = fp8;
      blocks.scale_rows = rows.scale_rows = scale_rows;
      blocks.scale_dtype = DType::kF32;
      rows.scale_of_row = true;
      formats.insert(formats.end(), {blocks, rows});
    }
  }
  return formats;
}

std::string FormatName(const testing::TestParamInfo<Format>& info) {
  return info.param.Name();
}

class LinearFormatTest : public testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    const bool emulated = GetParam().numerics == Numerics::kEmulatedBf16;
    LIME_SKIP_WITHOUT(!emulated || EmulatedBf16() != nullptr, "a CPU with AVX-512");
  }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(LinearFormatTest, AgreesWithExactArithmetic) {
  for (DType x_dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int64_t cols : {128, 384, 1, 31, 32, 33, 65, 96, 200, 288, 4256}) {
      if (cols % GetParam().Multiple() != 0) continue;
      for (int64_t rows : {1, 5, 67}) {
        if (rows * cols > 100'000 && !ManyCases()) continue;  // under a sanitizer, exact sums of all of these take longest
        const auto w = MakeWeights(GetParam(), rows, cols, rows * cols);
        for (int64_t tokens : {1, 4, 5, 13}) {
          const Bytes x = FromFloats(RandomFloats(tokens * cols, 7), x_dtype);
          ExpectClose(*w, x, x_dtype, tokens,
                      Apply(w->matrix, x, {.x_dtype = x_dtype, .tokens = tokens, .threads = 2, .numerics = GetParam().numerics}));
        }
      }
    }
  }
}

TEST_P(LinearFormatTest, BitsDependOnTheRowAlone) {
  constexpr int64_t kRows = 70, kCols = 4224, kTokens = 64;  // 132 chunks: more than one block of the GEMM
  const DType x_dtype = IsWorkingDType(GetParam().scale_dtype) && !GetParam().IsFp8() ? GetParam().scale_dtype : DType::kBF16;
  const auto w = MakeWeights(GetParam(), kRows, kCols, 3);
  const Bytes x = FromFloats(RandomFloats(kTokens * kCols, 4), x_dtype);
  const std::vector<float> all = Apply(w->matrix, x, {.x_dtype = x_dtype, .tokens = kTokens, .numerics = GetParam().numerics});
  ExpectClose(*w, x, x_dtype, 2, all);
  for (int64_t tokens : {1, 2, 3, 4, 5, 7, 16, 64}) {
    for (int threads : {1, 2, 3}) {
      if (threads == 2 && !ManyCases()) continue;
      const Bytes last(x.end() - tokens * kCols * ElementBytes(x_dtype), x.end());
      const std::vector<float> y =
          Apply(w->matrix, last, {.x_dtype = x_dtype, .tokens = tokens, .threads = threads, .numerics = GetParam().numerics});
      EXPECT_TRUE(SameBits(y, {all.end() - tokens * kRows, all.end()})) << tokens << " tokens, " << threads << " threads";
    }
  }
}

TEST_P(LinearFormatTest, BitsDoNotDependOnTheSplitOfTheRows) {
  constexpr int64_t kRows = 61, kCols = 256;
  const auto w = MakeWeights(GetParam(), kRows, kCols, 5);
  const int64_t groups = GetParam().bits == 0 ? 0 : kCols / GetParam().group_size * ElementBytes(GetParam().scale_dtype);
  for (int64_t tokens : {1, 9}) {
    const Bytes x = FromFloats(RandomFloats(tokens * kCols, 6), DType::kBF16);
    const std::vector<float> whole = Apply(w->matrix, x, {.tokens = tokens, .numerics = GetParam().numerics});
    for (int64_t split : {1, 7, 32, 60}) {
      Matrix upper = w->matrix, lower = w->matrix;
      upper.rows = split;
      lower.rows = kRows - split;
      lower.data = w->data.data() + split * w->matrix.RowBytes();
      if (GetParam().IsFp8()) {
        lower.first_row = split;
      } else {
        lower.scales = w->scales.data() + split * groups;
      }
      lower.biases = w->biases.data() + split * groups;
      std::vector<float> y(tokens * kRows);
      const LinearTask tasks[] = {{.weight = &lower, .out = y.data() + split, .out_stride = kRows},
                                  {.weight = &upper, .out = y.data(), .out_stride = kRows}};
      ThreadPool pool(2);
      LinearWorkspace ws(2, tokens, kCols, GetParam().numerics);
      Linear(pool, ws, x.data(), DType::kBF16, tokens, kCols, tasks);
      EXPECT_TRUE(SameBits(y, whole)) << tokens << " tokens, split at " << split;
    }
  }
}

TEST_P(LinearFormatTest, EveryInstructionSetHasTheSameBits) {
  const int64_t cols = GetParam().bits == 0 ? 301 : 384;
  const auto w = MakeWeights(GetParam(), 21, cols, 8);
  for (DType x_dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Bytes x = FromFloats(RandomFloats(9 * cols, 9), x_dtype), bias = FromFloats(RandomFloats(21, 10), x_dtype);
    for (int64_t tokens : {1, 3, 9}) {
      const Call call{.x_dtype = x_dtype, .tokens = tokens, .bias = bias.data(), .numerics = GetParam().numerics};
      hwy::SetSupportedTargetsForTest(0);
      const std::vector<float> best = Apply(w->matrix, x, call);
      for (int64_t target : {HWY_AVX3, HWY_AVX2, HWY_NEON, HWY_EMU128 | HWY_SCALAR}) {
        if (target != (HWY_EMU128 | HWY_SCALAR) && (hwy::SupportedTargets() & target) == 0) continue;
        hwy::SetSupportedTargetsForTest(target);
        EXPECT_TRUE(SameBits(Apply(w->matrix, x, call), best)) << InstructionSet() << ", " << tokens << " tokens of " << DTypeName(x_dtype);
        hwy::SetSupportedTargetsForTest(0);
      }
    }
  }
}

TEST_P(LinearFormatTest, NotANumberStaysInItsRow) {
  constexpr int64_t kRows = 9, kCols = 256;
  const auto w = MakeWeights(GetParam(), kRows, kCols, 11);
  if (!IsWorkingDType(GetParam().scale_dtype) || GetParam().IsFp8()) return;  // SmallFloatTest
  const bool packed = GetParam().bits != 0;
  const DType dtype = packed ? GetParam().scale_dtype : GetParam().dtype;
  const int64_t per_row = packed ? kCols / GetParam().group_size : kCols;
  Bytes& bytes = packed ? w->scales : w->data;
  const auto poison = [&](int64_t row, float value) {
    const Bytes element = FromFloats({value}, dtype);
    std::copy(element.begin(), element.end(), bytes.begin() + (row * per_row + per_row - 1) * element.size());
  };
  poison(3, std::numeric_limits<float>::quiet_NaN());
  poison(6, std::numeric_limits<float>::infinity());
  for (int64_t tokens : {1, 8}) {
    const Bytes ones = FromFloats(std::vector<float>(tokens * kCols, 1.0f), DType::kBF16);
    const std::vector<float> y = Apply(w->matrix, ones, {.tokens = tokens, .numerics = GetParam().numerics});
    for (int64_t i = 0; i < tokens * kRows; ++i) {
      const int64_t row = i % kRows;
      EXPECT_EQ(std::isfinite(y[i]), row != 3 && row != 6) << i;
      EXPECT_TRUE(row != 3 || std::isnan(y[i])) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LinearFormatTest, testing::ValuesIn(AllFormats()), FormatName);

class LinearWorkingTypeTest : public testing::TestWithParam<DType> {};

TEST_P(LinearWorkingTypeTest, AddsBiasAndResidualInFloatAndRoundsOnce) {
  constexpr int64_t kRows = 37, kCols = 65, kStride = 40;
  const DType dtype = GetParam();
  const auto w = MakeWeights({dtype}, kRows, kCols, 20);
  const Bytes bias = FromFloats(RandomFloats(kRows, 21), dtype);
  ThreadPool pool(2);
  for (int64_t tokens : {1, 3, 11}) {
    const Bytes x = FromFloats(RandomFloats(tokens * kCols, 22), dtype), before = FromFloats(RandomFloats(tokens * kStride, 23), dtype);
    const std::vector<float> plain = Apply(w->matrix, x, {.x_dtype = dtype, .tokens = tokens});
    const std::vector<float> biased = Apply(w->matrix, x, {.x_dtype = dtype, .tokens = tokens, .bias = bias.data()});
    Bytes after = before;
    LinearWorkspace ws(2, tokens, kCols);
    const float scale = tokens == 3 ? 0.22f : 1.0f;
    const LinearTask task{.weight = &w->matrix, .bias = bias.data(), .add_to = after.data(), .add_scale = scale, .out_stride = kStride};
    Linear(pool, ws, x.data(), dtype, tokens, kCols, {&task, 1});
    for (int64_t i = 0; i < tokens * kStride; ++i) {
      const int64_t t = i / kStride, r = i % kStride;
      float expected = Element(before, dtype, i);
      if (r < kRows) {
        EXPECT_EQ(biased[t * kRows + r], plain[t * kRows + r] + Element(bias, dtype, r));
        const float scaled = scale * biased[t * kRows + r];
        expected = Element(FromFloats({expected + scaled}, dtype), dtype, 0);
      }
      EXPECT_EQ(Element(after, dtype, i), expected) << "token " << t << " row " << r;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(WorkingTypes, LinearWorkingTypeTest, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

class SmallFloatTest : public testing::TestWithParam<Numerics> {
 protected:
  void SetUp() override { LIME_SKIP_WITHOUT(GetParam() != Numerics::kEmulatedBf16 || EmulatedBf16() != nullptr, "a CPU with AVX-512"); }
  // y of one row whose only weight that is not zero meets x = 1.
  std::vector<float> Alone(const Matrix& w) {
    Bytes x = FromFloats(std::vector<float>(w.cols, 0.0f), DType::kBF16);
    const Bytes one = FromFloats({1.0f}, DType::kBF16);
    std::copy(one.begin(), one.end(), x.begin() + 10);
    std::vector<float> y = Apply(w, x, {.numerics = GetParam()});
    Bytes many;
    for (int i = 0; i < 9; ++i) many.insert(many.end(), x.begin(), x.end());
    const std::vector<float> all = Apply(w, many, {.tokens = 9, .numerics = GetParam()});
    EXPECT_EQ(std::memcmp(y.data(), all.data() + 8 * w.rows, y.size() * sizeof(float)), 0);
    return y;
  }
};

TEST_P(SmallFloatTest, EveryFp8CodeIsItsValue) {
  Bytes data(256 * 32), scales = FromFloats({2.0f}, DType::kF32);
  for (int code = 0; code < 256; ++code) data[code * 32 + 5] = static_cast<char>(code);
  const Matrix w{.rows = 256,
                 .cols = 32,
                 .dtype = DType::kF8E4M3,
                 .data = data.data(),
                 .bits = 8,
                 .group_size = 128,
                 .scale_dtype = DType::kF32,
                 .scales = scales.data(),
                 .scale_rows = 256,
                 .scale_cols = 1};
  const std::vector<float> y = Alone(w);
  for (int code = 0; code < 256; ++code) {
    const double sign = code < 128 ? 1 : -1;
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double value = exponent == 0 ? mantissa * 0x1p-9 : (8 + mantissa) * std::ldexp(1.0, exponent - 10);
    if (code % 128 == 127) {
      EXPECT_TRUE(std::isnan(y[code])) << code;
    } else {
      EXPECT_EQ(y[code], 2 * sign * value) << code;
    }
  }
}

TEST_P(SmallFloatTest, EveryFp4CodeIsItsValueTimesEveryPowerOfTwo) {
  constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int power = 0; power < 256; ++power) {
    Bytes data(16 * 32), scales(16 * 2, static_cast<char>(power));
    for (int code = 0; code < 16; ++code) data[code * 32 + 2] = static_cast<char>(code << 4);  // column 5
    const Matrix w{.rows = 16,
                   .cols = 64,
                   .dtype = DType::kU8,
                   .data = data.data(),
                   .bits = 4,
                   .group_size = 32,
                   .scale_dtype = DType::kU8,
                   .scales = scales.data()};
    const std::vector<float> y = Alone(w);
    for (int code = 0; code < 16; ++code) {
      const double value = (code < 8 ? 1 : -1) * kValues[code % 8] * std::ldexp(1.0, power - 127);
      if (power == 255) {
        EXPECT_TRUE(std::isnan(y[code])) << code;
      } else {
        EXPECT_EQ(y[code], static_cast<float>(value)) << code << ", power " << power;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Numerics, SmallFloatTest, testing::Values(Numerics::kBf16Dot, Numerics::kPortable, Numerics::kEmulatedBf16),
                         [](const auto& info) {
                           return info.param == Numerics::kBf16Dot    ? "Bf16Dot"
                                  : info.param == Numerics::kPortable ? "Portable"
                                                                      : "Emulated";
                         });

TEST(LinearTest, TasksOfDifferentFormatsShareOneCall) {
  constexpr int64_t kCols = 256;
  const auto dense = MakeWeights({DType::kF16}, 33, kCols, 30);
  const auto packed = MakeWeights({.bits = 6, .group_size = 64}, 129, kCols, 31);
  for (int64_t tokens : {1, 6, 20}) {
    const Bytes x = FromFloats(RandomFloats(tokens * kCols, 32), DType::kBF16);
    std::vector<float> y1(tokens * 33), y2(tokens * 129);
    const LinearTask tasks[] = {{.weight = &dense->matrix, .out = y1.data(), .out_stride = 33},
                                {.weight = &packed->matrix, .out = y2.data(), .out_stride = 129}};
    ThreadPool pool(3);
    LinearWorkspace ws(3, 32, 512);
    Linear(pool, ws, x.data(), DType::kBF16, tokens, kCols, tasks);
    ExpectClose(*dense, x, DType::kBF16, tokens, y1);
    ExpectClose(*packed, x, DType::kBF16, tokens, y2);
  }
}

// Calls of 1 to 20 tokens, of two widths and several formats; some have the same x. The workspace
// has room for a few of them at a time.
TEST(LinearTest, CallsThatShareARegionHaveTheBitsOfSingleCalls) {
  constexpr int64_t kRows = 70, kTokens[] = {1, 1, 3, 8, 20, 1, 2, 1, 9, 5, 1, 1};
  constexpr int64_t kCols[] = {128, 128, 256, 128, 128, 256, 256, 128, 256, 128, 256, 256};
  std::vector<std::unique_ptr<Weights>> weights;
  for (const int64_t cols : {128, 256}) {
    for (const Format& format : {Format{DType::kBF16}, Format{.bits = 4, .group_size = 64}, Format{.bits = 8, .group_size = 32}})
      weights.push_back(MakeWeights(format, kRows, cols, 60));
  }
  const Bytes x = FromFloats(RandomFloats(20 * 256, 61), DType::kBF16);
  for (const Numerics numerics : {Numerics::kPortable, Numerics::kEmulatedBf16}) {
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      LinearWorkspace shared(threads, 20, 256, numerics);
      std::vector<LinearTask> tasks;
      std::vector<LinearCall> calls;
      std::vector<std::vector<float>> together, alone;
      for (size_t i = 0; i < std::size(kTokens) * 2; ++i) {
        together.emplace_back(kTokens[i / 2] * kRows), alone.emplace_back(kTokens[i / 2] * kRows);
        const Weights& w = *weights[(kCols[i / 2] == 128 ? 0 : 3) + i % 3];
        tasks.push_back({.weight = &w.matrix, .out = together.back().data(), .out_stride = kRows});
      }
      for (size_t i = 0; i < std::size(kTokens); ++i)
        calls.push_back({.x = x.data(), .tokens = kTokens[i], .x_stride = kCols[i], .tasks = {&tasks[2 * i], 2}});
      Linear(pool, shared, DType::kBF16, calls);
      for (size_t i = 0; i < tasks.size(); ++i) {
        LinearTask task = tasks[i];
        task.out = alone[i].data();
        Linear(pool, shared, x.data(), DType::kBF16, kTokens[i / 2], kCols[i / 2], {&task, 1});
        EXPECT_EQ(together[i], alone[i]) << "task " << i << ", " << threads << " threads";
      }
    }
  }
}

TEST(LinearTest, MoreTokensThanOneBatchOfTheGemm) {
  const auto w = MakeWeights({DType::kBF16}, 10, 64, 40);
  const Bytes x = FromFloats(RandomFloats(1100 * 64, 41), DType::kBF16);
  ExpectClose(*w, x, DType::kBF16, 1100, Apply(w->matrix, x, {.tokens = 1100, .threads = 2}));
}

TEST(LinearTest, StridedTokensAndPaddedOutputs) {
  constexpr int64_t kRows = 6, kCols = 48, kTokens = 7, kXStride = 50, kOutStride = 9;
  const auto w = MakeWeights({DType::kF32}, kRows, kCols, 50);
  const std::vector<float> x = RandomFloats(kTokens * kXStride, 51);
  std::vector<float> dense, y(kTokens * kOutStride, 7.0f);
  for (int64_t t = 0; t < kTokens; ++t) dense.insert(dense.end(), x.begin() + t * kXStride, x.begin() + t * kXStride + kCols);
  ThreadPool pool(1);
  LinearWorkspace ws(1, kTokens, kCols);
  const LinearTask task{.weight = &w->matrix, .out = y.data(), .out_stride = kOutStride};
  Linear(pool, ws, x.data(), DType::kF32, kTokens, kXStride, {&task, 1});
  const std::vector<float> expected = Apply(w->matrix, FromFloats(dense, DType::kF32), {.x_dtype = DType::kF32, .tokens = kTokens});
  for (int64_t i = 0; i < kTokens * kOutStride; ++i) {
    EXPECT_EQ(y[i], i % kOutStride < kRows ? expected[i / kOutStride * kRows + i % kOutStride] : 7.0f) << i;
  }
}

TEST(LinearTest, NamesItsOrderAndInstructionSet) {
  EXPECT_STREQ(NumericsId(Numerics::kPortable), "portable-f32-1");
  EXPECT_EQ(std::string_view(NumericsId()) == "portable-f32-1", HardwareBf16() == nullptr);
  EXPECT_STRNE(InstructionSet(), "");
}

TEST(MatrixTest, CountsItsBytes) {
  EXPECT_EQ((Matrix{.rows = 3, .cols = 10, .dtype = DType::kF16}.TotalBytes()), 60);
  const Matrix packed{.rows = 2, .cols = 128, .dtype = DType::kU32, .bits = 3, .group_size = 64};
  EXPECT_EQ(packed.RowBytes(), 48);
  EXPECT_EQ(packed.TotalBytes(), 2 * 48 + 2 * 2 * 2 * 2);
  const Matrix mxfp4{.rows = 3, .cols = 64, .dtype = DType::kU8, .bits = 4, .group_size = 32, .scale_dtype = DType::kU8};
  EXPECT_EQ(mxfp4.TotalBytes(), 3 * 32 + 3 * 2);
  const Matrix fp8{.rows = 200,
                   .cols = 160,
                   .dtype = DType::kF8E4M3,
                   .bits = 8,
                   .group_size = 128,
                   .scale_dtype = DType::kF32,
                   .scale_rows = 128,
                   .scale_cols = 2};
  EXPECT_EQ(fp8.TotalBytes(), 200 * 160 + 2 * 2 * 4);
}

}  // namespace
}  // namespace lime::cpu
