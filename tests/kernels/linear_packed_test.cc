// The bf16 kernels of packed weights against their stated order, bit for bit, by the CPU's dot
// product and by its emulation.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/linear_bf16.h"
#include "planner/base/small_floats.h"
#include "tests/kernels/random_floats.h"
#include "tests/skips.h"

namespace lime::cpu {
namespace {

struct Format {
  int bits, group_size;
  DType dtype = DType::kU32;  // kU8: mxfp4; kF8E4M3: fp8

  bool IsAffine() const { return dtype == DType::kU32; }
  float ValueOf(uint32_t code) const {
    if (dtype == DType::kU8) return kFp4Values[code];
    return dtype == DType::kF8E4M3 ? Fp8Value(static_cast<uint8_t>(code)) : static_cast<float>(code);
  }
};
constexpr int64_t kScaleRows = 20;  // rows that share scales of fp8: neither a block of the kernels nor a part

struct Packed {
  Packed(const Format& format, int64_t rows, int64_t cols, uint32_t seed)
      : q(rows * cols),
        scales(RandomBf16(rows * std::max<int64_t>(1, cols / format.group_size), seed + 1)),
        biases(RandomBf16(rows * std::max<int64_t>(1, cols / format.group_size), seed + 2)) {
    matrix = {.rows = rows, .cols = cols, .dtype = DType::kU32, .bits = format.bits, .group_size = format.group_size};
    data.resize(rows * matrix.RowBytes() / 4);
    std::mt19937 random(seed);
    for (int64_t i = 0; i < rows * cols; ++i) {
      q[i] = random() & ((1u << format.bits) - 1);
      if (format.dtype == DType::kF8E4M3 && (q[i] & 0x7f) == 0x7f) q[i] ^= 1;  // not NaN
      for (int bit = 0; bit < format.bits; ++bit) {
        const int64_t at = i / cols * matrix.RowBytes() * 8 + i % cols * format.bits + bit;
        data[at / 32] |= (q[i] >> bit & 1) << (at % 32);
      }
    }
    matrix.data = data.data();
    matrix.scales = scales.data();
    matrix.biases = biases.data();
    if (!format.IsAffine()) TakeFormat(format, seed);
  }

  // Of mxfp4 or fp8.
  void TakeFormat(const Format& format, uint32_t seed) {
    std::mt19937 random(seed);
    matrix.dtype = format.dtype;
    matrix.biases = nullptr;
    biases.clear();
    if (format.dtype == DType::kU8) {
      exponents.resize(scales.size());
      for (uint8_t& exponent : exponents) exponent = static_cast<uint8_t>(117 + random() % 20);
      matrix.scale_dtype = DType::kU8;
      matrix.scales = exponents.data();
    } else {
      matrix.scale_rows = kScaleRows;
      matrix.scale_cols = matrix.Groups();
      scales = RandomBf16((matrix.rows - 1) / kScaleRows * matrix.scale_cols + matrix.scale_cols, seed + 1);
      matrix.scales = scales.data();
    }
  }

  float Scale(int64_t row, int64_t group) const {
    if (matrix.dtype == DType::kU8) return PowerOfCode(exponents[row * matrix.Groups() + group]);
    if (matrix.dtype == DType::kF8E4M3) return ToFloat(scales[row / kScaleRows * matrix.scale_cols + group]);
    return ToFloat(scales[row * matrix.Groups() + group]);
  }

  Matrix matrix;
  std::vector<uint8_t> exponents;
  std::vector<uint32_t> q, data;
  std::vector<BF16> scales, biases;
};

using StepFunction = void (*)(const BF16* w, const BF16* x, float* acc);

// A step of one lane.
float Step(StepFunction step, BF16 even_w, BF16 odd_w, BF16 even_x, BF16 odd_x, float acc) {
  BF16 w[32] = {even_w, odd_w}, x[32] = {even_x, odd_x};
  float lanes[16] = {acc};
  step(w, x, lanes);
  return lanes[0];
}

// The sum of x over 32 columns: a step with ones, then lanes 8, 4, 2 and 1 apart are added. Wider
// groups add the sums of their halves.
float StatedSum(StepFunction step, const BF16* x, int64_t count) {
  if (count > 32) return StatedSum(step, x, count / 2) + StatedSum(step, x + count / 2, count / 2);
  BF16 ones[32];
  std::fill_n(ones, 32, FromFloat<BF16>(1.0f));
  float lanes[16] = {};
  step(ones, x, lanes);
  for (int apart = 8; apart > 0; apart /= 2) {
    for (int i = 0; i < apart; ++i) lanes[i] += lanes[i + apart];
  }
  return lanes[0];
}

// The stated order of one output.
float StatedDot(StepFunction step, const Format& format, const Packed& w, int64_t row, const BF16* x) {
  const Matrix& m = w.matrix;
  const int64_t apart = m.bits <= 4 ? 4 : 2;
  const auto q = [&](int64_t k) { return FromFloat<BF16>(format.ValueOf(w.q[row * m.cols + k])); };
  float y = 0;
  for (int64_t begin = 0; begin < m.cols; begin += m.group_size) {
    float sum = 0;
    for (int64_t piece = begin; piece < std::min(begin + m.group_size, m.cols); piece += 2 * apart) {
      for (int64_t k = piece; k < piece + apart; ++k) sum = Step(step, q(k), q(k + apart), x[k], x[k + apart], sum);
    }
    const int64_t group = begin / m.group_size;
    y = std::fma(w.Scale(row, group), sum, y);
    if (format.IsAffine()) y = std::fma(ToFloat(w.biases[row * m.Groups() + group]), StatedSum(step, x + begin, m.group_size), y);
  }
  return y;
}

std::vector<float> Apply(Numerics numerics, const Matrix& matrix, const std::vector<BF16>& x, int threads) {
  const int64_t tokens = static_cast<int64_t>(x.size()) / matrix.cols;
  ThreadPool pool(threads);
  LinearWorkspace ws(threads, tokens, matrix.cols, numerics);
  std::vector<float> y(tokens * matrix.rows);
  const LinearTask task{.weight = &matrix, .out = y.data(), .out_stride = matrix.rows};
  Linear(pool, ws, x.data(), DType::kBF16, tokens, matrix.cols, {&task, 1});
  return y;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Case {
  Numerics numerics;
  Format format;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Numerics numerics : {Numerics::kEmulatedBf16, Numerics::kBf16Dot}) {
    for (const int bits : {3, 4, 6, 8}) {
      for (const int group_size : {32, 64, 128}) cases.push_back({numerics, {bits, group_size}});
    }
    cases.push_back({numerics, {4, 32, DType::kU8}});
    cases.push_back({numerics, {8, 128, DType::kF8E4M3}});
  }
  return cases;
}

class PackedBf16Test : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (numerics() == Numerics::kEmulatedBf16) {
      LIME_SKIP_WITHOUT(EmulatedBf16() != nullptr, "a CPU with AVX-512");
    } else {
      LIME_SKIP_WITHOUT(HardwareBf16() != nullptr, "a CPU with AVX512-BF16");
    }
  }
  Numerics numerics() const { return GetParam().numerics; }
  const Format& format() const { return GetParam().format; }
  StepFunction step() const { return ChooseBf16(numerics())->step; }
};

TEST_P(PackedBf16Test, EveryOutputFollowsTheStatedOrderBitForBit) {
  constexpr int64_t kRows = 37, kMaxTokens = 14;  // two blocks of rows and a part
  // One group, lines with a part of their units, several ranges of columns of a panel.
  for (const int64_t groups : {1, 2, 3, 5, 11, 8192 / format().group_size + 1}) {
    // The last group of fp8 may be smaller.
    const int64_t cols = groups * format().group_size - (format().dtype == DType::kF8E4M3 ? groups % 4 * 32 : 0);
    const Packed w(format(), kRows, cols, 1);
    const std::vector<BF16> x = RandomBf16(kMaxTokens * cols, 2);
    std::vector<float> expected(kMaxTokens * kRows);
    // With many columns some outputs stand for all.
    const int64_t every = cols > 4096 ? 17 : 1;
    for (size_t i = 0; i < expected.size(); i += every) {
      expected[i] = StatedDot(step(), format(), w, static_cast<int64_t>(i) % kRows, x.data() + static_cast<int64_t>(i) / kRows * cols);
    }
    for (int64_t tokens = 1; tokens <= kMaxTokens; ++tokens) {
      const std::vector<float> y = Apply(numerics(), w.matrix, {x.begin(), x.begin() + tokens * cols}, 1 + static_cast<int>(tokens % 3));
      for (size_t i = 0; i < y.size(); i += every)
        ASSERT_EQ(y[i], expected[i]) << tokens << " tokens, " << cols << " columns, output " << i;
    }
  }
}

TEST_P(PackedBf16Test, ManyRowsAndTokensHaveTheBitsOfOneRowAndOneToken) {
  constexpr int64_t kRows = 131, kCols = 384, kTokens = 601;  // several panels and batches of the GEMM
  const Packed w(format(), kRows, kCols, 3);
  const std::vector<BF16> x = RandomBf16(kTokens * kCols, 4);
  const std::vector<float> all = Apply(numerics(), w.matrix, x, 2);
  for (int64_t first = 0; first < kTokens; first += 50) {
    for (int64_t tokens = 1; tokens <= std::min<int64_t>(9, kTokens - first); ++tokens) {
      const std::vector<float> some = Apply(numerics(), w.matrix, {x.begin() + first * kCols, x.begin() + (first + tokens) * kCols}, 3);
      EXPECT_TRUE(SameBits(some, {all.begin() + first * kRows, all.begin() + (first + tokens) * kRows}))
          << tokens << " tokens from " << first;
    }
  }
  for (const int64_t row : {0, 1, 77, 130}) {
    Matrix one = w.matrix;
    one.rows = 1;
    one.data = w.data.data() + row * w.matrix.RowBytes() / 4;
    if (format().IsAffine()) {
      one.scales = w.scales.data() + row * kCols / format().group_size;
      one.biases = w.biases.data() + row * kCols / format().group_size;
    } else if (format().dtype == DType::kU8) {
      one.scales = w.exponents.data() + row * kCols / 32;
    } else {
      one.first_row = row;
    }
    const std::vector<float> y = Apply(numerics(), one, x, 1);
    for (int64_t t = 0; t < kTokens; ++t) ASSERT_EQ(y[t], all[t * kRows + row]) << "token " << t << ", row " << row;
  }
}

TEST_P(PackedBf16Test, TheEmulationHasTheBitsOfTheInstruction) {
  LIME_SKIP_WITHOUT(HardwareBf16() != nullptr && Bf16NumericsId(*HardwareBf16()) == "x86-avx512bf16-1", "a CPU with AVX512-BF16");
  const Packed w(format(), 50, 640, 5);
  for (const int64_t tokens : {1, 3, 8, 30}) {
    const std::vector<BF16> x = RandomBf16(tokens * 640, 6);
    EXPECT_TRUE(SameBits(Apply(Numerics::kBf16Dot, w.matrix, x, 2), Apply(Numerics::kEmulatedBf16, w.matrix, x, 2))) << tokens << " tokens";
    EXPECT_FALSE(SameBits(Apply(Numerics::kBf16Dot, w.matrix, x, 2), Apply(Numerics::kPortable, w.matrix, x, 2))) << tokens << " tokens";
  }
}

#if defined(__linux__)
// Memory whose last byte is the last of a mapping: one byte more would end the test.
class EndOfMapping {
 public:
  EndOfMapping(const void* from, int64_t bytes) : mapped_((bytes + kPage - 1) / kPage * kPage) {
    memory_ = static_cast<char*>(mmap(nullptr, mapped_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    data_ = memory_ + mapped_ - bytes;
    std::memcpy(data_, from, bytes);
    EXPECT_EQ(mprotect(memory_ + mapped_, kPage, PROT_NONE), 0);
  }
  ~EndOfMapping() { munmap(memory_, mapped_ + kPage); }
  EndOfMapping(const EndOfMapping&) = delete;
  EndOfMapping& operator=(const EndOfMapping&) = delete;
  const char* data() const { return data_; }

 private:
  static constexpr int64_t kPage = 4096;
  int64_t mapped_;
  char *memory_, *data_;
};

TEST_P(PackedBf16Test, NothingIsReadBeyondTheWeights) {
  for (const int64_t groups : {1, 3, 8}) {
    const int64_t cols = groups * format().group_size;
    const Packed w(format(), 19, cols, 7);
    const EndOfMapping data(w.data.data(), static_cast<int64_t>(w.data.size()) * 4);
    const EndOfMapping scales(w.scales.data(), static_cast<int64_t>(w.scales.size()) * 2);
    const EndOfMapping biases(w.biases.data(), static_cast<int64_t>(w.biases.size()) * 2);
    const EndOfMapping exponents(w.exponents.data(), static_cast<int64_t>(w.exponents.size()));
    Matrix guarded = w.matrix;
    guarded.data = data.data();
    guarded.scales = format().dtype == DType::kU8 ? exponents.data() : scales.data();
    guarded.biases = biases.data();
    for (const int64_t tokens : {1, 9}) {
      const std::vector<BF16> x = RandomBf16(tokens * cols, 8);
      EXPECT_TRUE(SameBits(Apply(numerics(), guarded, x, 1), Apply(numerics(), w.matrix, x, 1)));
    }
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Formats, PackedBf16Test, testing::ValuesIn(Cases()), [](const auto& info) {
  const char* numerics = info.param.numerics == Numerics::kBf16Dot ? "Hardware" : "Emulated";
  const Format& format = info.param.format;
  if (!format.IsAffine()) return absl::StrCat(numerics, format.dtype == DType::kU8 ? "Mxfp4" : "Fp8");
  return absl::StrCat(numerics, "Q", format.bits, "G", format.group_size);
});

TEST(PackedNumericsIdTest, PackedLayersHaveAnIdOfTheirOwn) {
  EXPECT_STREQ(NumericsId(Numerics::kPortable, true), "portable-f32-1");
  const Bf16Kernels defined{.linear = {}, .packed = {}, .step = DefinedBf16Step, .spin = nullptr};
  EXPECT_EQ(Bf16NumericsId(defined, true), "x86-avx512bf16-packed-1");
  if (EmulatedBf16() != nullptr) {
    EXPECT_STREQ(NumericsId(Numerics::kEmulatedBf16, true), "emulated-avx512bf16-packed-1");
  }
  LIME_SKIP_WITHOUT(HardwareBf16() != nullptr, "a CPU with AVX512-BF16");
  EXPECT_EQ(NumericsId(Numerics::kBf16Dot, true), Bf16NumericsId(*HardwareBf16(), true));
  // Where the instruction is no faster, packed weights keep the portable order.
  EXPECT_STREQ(NumericsId(Numerics::kAuto, true), NumericsId(Numerics::kBf16Dot, ChoosePackedBf16(Numerics::kAuto) != nullptr));
}

}  // namespace
}  // namespace lime::cpu
