// The bf16 kernels against their stated order, bit for bit. The emulation of the dot product stands
// in for the instruction, so that all but that one step is tested on every CPU with AVX-512.
#include "kernels/cpu/linear/linear_bf16.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "gtest/gtest.h"
#include "kernels/cpu/linear/linear.h"
#include "tests/kernels/random_floats.h"
#include "tests/skips.h"

namespace lime::cpu {
namespace {

using StepFunction = void (*)(const BF16* w, const BF16* x, float* acc);

// The stated order of one output: chunks of 64 elements, 32 for each of two planes of 16 lanes,
// then the tree.
float StatedDot(StepFunction step, const BF16* w, const BF16* x, int64_t cols) {
  float lanes[2][16] = {};
  for (int64_t k = 0; k < (cols + 63) / 64 * 64; k += 32) {
    BF16 w_part[32] = {}, x_part[32] = {};
    for (int64_t i = 0; i < 32 && k + i < cols; ++i) w_part[i] = w[k + i], x_part[i] = x[k + i];
    step(w_part, x_part, lanes[k / 32 % 2]);
  }
  float sum[16];
  for (int i = 0; i < 16; ++i) sum[i] = lanes[0][i] + lanes[1][i];
  for (int apart = 8; apart > 0; apart /= 2) {
    for (int i = 0; i < apart; ++i) sum[i] += sum[i + apart];
  }
  return sum[0];
}

std::vector<float> Apply(Numerics numerics, const std::vector<BF16>& w, const std::vector<BF16>& x, int64_t rows, int64_t cols,
                         int threads) {
  const int64_t tokens = static_cast<int64_t>(x.size()) / cols;
  const Matrix matrix{.rows = rows, .cols = cols, .dtype = DType::kBF16, .data = w.data()};
  ThreadPool pool(threads);
  LinearWorkspace ws(threads, tokens, cols, numerics);
  std::vector<float> y(tokens * rows);
  const LinearTask task{.weight = &matrix, .out = y.data(), .out_stride = rows};
  Linear(pool, ws, x.data(), DType::kBF16, tokens, cols, {&task, 1});
  return y;
}

class Bf16KernelsTest : public testing::TestWithParam<Numerics> {
 protected:
  void SetUp() override {
    if (GetParam() == Numerics::kEmulatedBf16) {
      kernels_ = EmulatedBf16();
      LIME_SKIP_WITHOUT(kernels_ != nullptr, "a CPU with AVX-512");
    } else {
      kernels_ = HardwareBf16();
      LIME_SKIP_WITHOUT(kernels_ != nullptr, "a CPU with AVX512-BF16");
    }
  }
  const Bf16Kernels* kernels_ = nullptr;
};

TEST_P(Bf16KernelsTest, EveryOutputFollowsTheStatedOrderBitForBit) {
  constexpr int64_t kRows = 7, kMaxTokens = 14;
  // Less than a plane, one plane and a bit, whole chunks, several blocks of a panel and a tail.
  for (int64_t cols : {1, 2, 31, 32, 33, 63, 64, 65, 97, 128, 2048, 4097, 8192 + 45}) {
    const std::vector<BF16> w = RandomBf16(kRows * cols, 1), x = RandomBf16(kMaxTokens * cols, 2);
    std::vector<float> expected;
    for (int64_t t = 0; t < kMaxTokens; ++t) {
      for (int64_t r = 0; r < kRows; ++r) {
        expected.push_back(StatedDot(kernels_->step, w.data() + r * cols, x.data() + t * cols, cols));
        if (GetParam() != Numerics::kEmulatedBf16) continue;  // a CPU may round in its own way, which its numerics_id then tells
        ASSERT_EQ(expected.back(), StatedDot(DefinedBf16Step, w.data() + r * cols, x.data() + t * cols, cols)) << cols << " columns";
      }
    }
    for (int64_t tokens = 1; tokens <= kMaxTokens; ++tokens) {
      const std::vector<float> y = Apply(GetParam(), w, {x.begin(), x.begin() + tokens * cols}, kRows, cols, 1 + tokens % 3);
      for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], expected[i]) << tokens << " tokens, " << cols << " columns, output " << i;
    }
  }
}

TEST_P(Bf16KernelsTest, ManyRowsAndTokensHaveTheBitsOfOneRowAndOneToken) {
  constexpr int64_t kRows = 131, kCols = 320, kTokens = 601;  // several panels and batches of the GEMM
  const std::vector<BF16> w = RandomBf16(kRows * kCols, 3), x = RandomBf16(kTokens * kCols, 4);
  const std::vector<float> all = Apply(GetParam(), w, x, kRows, kCols, 2);
  for (int64_t t = 0; t < kTokens; t += 50) {
    const std::vector<float> one = Apply(GetParam(), w, {x.begin() + t * kCols, x.begin() + (t + 1) * kCols}, kRows, kCols, 3);
    for (int64_t row = 0; row < kRows; ++row)
      ASSERT_EQ(std::bit_cast<uint32_t>(one[row]), std::bit_cast<uint32_t>(all[t * kRows + row])) << "token " << t << ", row " << row;
  }
}

TEST_P(Bf16KernelsTest, StepsAgreeWithExactArithmetic) {
  const std::vector<BF16> w = RandomBf16(32 * 100, 5), x = RandomBf16(32 * 100, 6);
  for (int64_t k = 0; k < 32 * 100; k += 32) {
    float acc[16];
    for (int i = 0; i < 16; ++i) acc[i] = static_cast<float>(i) / 3;
    kernels_->step(w.data() + k, x.data() + k, acc);
    for (int i = 0; i < 16; ++i) {
      const double products[2] = {double{ToFloat(w[k + 2 * i])} * ToFloat(x[k + 2 * i]),
                                  double{ToFloat(w[k + 2 * i + 1])} * ToFloat(x[k + 2 * i + 1])};
      const double start = static_cast<float>(i) / 3;
      const double magnitude = std::abs(start) + std::abs(products[0]) + std::abs(products[1]);
      ASSERT_NEAR(acc[i], start + products[0] + products[1], 2 * 0x1p-24 * magnitude);
    }
  }
}

TEST_P(Bf16KernelsTest, PortableOrderDiffersButAgreesWithinRounding) {
  constexpr int64_t kRows = 40, kCols = 1000, kTokens = 3;
  const std::vector<BF16> w = RandomBf16(kRows * kCols, 7), x = RandomBf16(kTokens * kCols, 8);
  const std::vector<float> ours = Apply(GetParam(), w, x, kRows, kCols, 2);
  const std::vector<float> portable = Apply(Numerics::kPortable, w, x, kRows, kCols, 2);
  EXPECT_NE(ours, portable);
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], portable[i], 1e-3);
}

#if defined(__linux__)
// Weights whose last byte is the last of a mapping: one byte more would end the test.
TEST_P(Bf16KernelsTest, NothingIsReadBeyondTheWeights) {
  constexpr int64_t kPage = 4096;
  for (int64_t cols : {1, 33, 71, 640}) {
    const std::vector<BF16> w = RandomBf16(5 * cols, 9), x = RandomBf16(9 * cols, 10);
    const int64_t bytes = static_cast<int64_t>(w.size() * sizeof(BF16)), mapped = (bytes + kPage - 1) / kPage * kPage;
    char* const memory = static_cast<char*>(mmap(nullptr, mapped + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory, MAP_FAILED);
    ASSERT_EQ(mprotect(memory + mapped, kPage, PROT_NONE), 0);
    std::memcpy(memory + mapped - bytes, w.data(), bytes);
    for (int64_t tokens : {1, 9}) {
      const Matrix matrix{.rows = 5, .cols = cols, .dtype = DType::kBF16, .data = memory + mapped - bytes};
      ThreadPool pool(1);
      LinearWorkspace ws(1, tokens, cols, GetParam());
      std::vector<float> y(tokens * 5);
      const LinearTask task{.weight = &matrix, .out = y.data(), .out_stride = 5};
      Linear(pool, ws, x.data(), DType::kBF16, tokens, cols, {&task, 1});
      EXPECT_EQ(y, Apply(GetParam(), w, {x.begin(), x.begin() + tokens * cols}, 5, cols, 1));
    }
    munmap(memory, mapped + kPage);
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Steps, Bf16KernelsTest, testing::Values(Numerics::kEmulatedBf16, Numerics::kAuto),
                         [](const auto& info) { return info.param == Numerics::kAuto ? "Hardware" : "Emulated"; });

TEST(Bf16NumericsIdTest, NamesTheDefinedArithmeticAndNoOther) {
  Bf16Kernels kernels{.linear = {}, .packed = {}, .step = DefinedBf16Step, .spin = nullptr};
  EXPECT_EQ(Bf16NumericsId(kernels), "x86-avx512bf16-1");
  // The even elements first.
  kernels.step = [](const BF16* w, const BF16* x, float* acc) {
    BF16 w_swapped[32], x_swapped[32];
    for (int i = 0; i < 32; ++i) w_swapped[i] = w[i ^ 1], x_swapped[i] = x[i ^ 1];
    DefinedBf16Step(w_swapped, x_swapped, acc);
  };
  const std::string even_first = Bf16NumericsId(kernels);
  // Both products and the sum rounded once.
  kernels.step = [](const BF16* w, const BF16* x, float* acc) {
    for (int i = 0; i < 16; ++i) {
      const double even = double{ToFloat(w[2 * i])} * ToFloat(x[2 * i]), odd = double{ToFloat(w[2 * i + 1])} * ToFloat(x[2 * i + 1]);
      acc[i] = static_cast<float>(acc[i] + (even + odd));
    }
  };
  const std::string rounded_once = Bf16NumericsId(kernels);
  EXPECT_TRUE(even_first.starts_with("x86-avx512bf16-x")) << even_first;
  EXPECT_TRUE(rounded_once.starts_with("x86-avx512bf16-x")) << rounded_once;
  EXPECT_NE(even_first, rounded_once);
  if (EmulatedBf16() != nullptr) {
    EXPECT_NE(Bf16NumericsId(*EmulatedBf16()), "x86-avx512bf16-1") << "the emulation keeps subnormal numbers";
  }
}

TEST(Bf16NumericsIdTest, TheCpuStatesWhichOrderIsInForce) {
  EXPECT_STREQ(NumericsId(Numerics::kPortable), "portable-f32-1");
  LIME_SKIP_WITHOUT(HardwareBf16() != nullptr, "a CPU with AVX512-BF16");
  EXPECT_EQ(NumericsId(), Bf16NumericsId(*HardwareBf16()));
}

}  // namespace
}  // namespace lime::cpu
