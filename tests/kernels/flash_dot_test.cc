// Sums of others in both orders, of inputs that are mostly zero, by the kernels of whole matrices and
// by those of active columns.
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/linear_bf16.h"
#include "planner/base/float_bits.h"
#include "tests/flash_cases.h"
#include "tests/kernels/strips.h"
#include "tests/skips.h"

namespace lime::cpu {
namespace {

std::vector<BF16> InBf16(const std::vector<float>& values) {
  std::vector<BF16> out;
  for (const float value : values) out.push_back(FromFloat<BF16>(value));
  return out;
}

struct Sums {
  std::vector<float> dense, sparse;
};

Sums Apply(const FlashDot& dot, Numerics numerics) {
  const auto rows = static_cast<int64_t>(dot.rows.size()), cols = static_cast<int64_t>(dot.x.size());
  std::vector<BF16> w;
  for (const std::vector<float>& row : dot.rows) {
    const std::vector<BF16> in_bf16 = InBf16(row);
    w.insert(w.end(), in_bf16.begin(), in_bf16.end());
  }
  const std::vector<BF16> x = InBf16(dot.x);
  const Matrix matrix{.rows = rows, .cols = cols, .dtype = DType::kBF16, .data = w.data()};
  ThreadPool pool(1);
  LinearWorkspace ws(1, 1, cols, numerics);
  Sums sums{.dense = std::vector<float>(dot.rows.size()), .sparse = std::vector<float>(dot.rows.size())};
  const LinearTask task{.weight = &matrix, .out = sums.dense.data(), .out_stride = rows};
  Linear(pool, ws, x.data(), DType::kBF16, 1, cols, {&task, 1});

  const ColumnsOf columns(matrix);
  std::vector<Strip> active;
  std::vector<BF16> of_active;
  for (int64_t k = 0; k < cols; ++k) {
    if (dot.x[static_cast<size_t>(k)] == 0) continue;
    active.push_back({.index = static_cast<int32_t>(k), .data = columns[k]});
    of_active.push_back(x[static_cast<size_t>(k)]);
  }
  StripWorkspace strips({.max_tokens = 1, .max_rows = rows, .max_columns = cols, .numerics = numerics});
  BeginColumns(strips, matrix, DType::kBF16, 1);
  AddColumns(pool, strips, active, of_active.data(), cols, -1);
  FinishColumns(pool, strips, {.out = sums.sparse.data(), .out_stride = rows});
  return sums;
}

void ExpectSumsOf(std::string_view order, Numerics numerics) {
  int cases = 0;
  for (const nlohmann::json& test : FlashCases("dot")) {
    if (test["order"] != order) continue;
    SCOPED_TRACE(test["name"]);
    const Sums sums = Apply(FlashDotOf(test), numerics);
    for (size_t r = 0; r < sums.dense.size(); ++r) {
      EXPECT_EQ(std::bit_cast<uint32_t>(sums.dense[r]), FlashBits(test["y"][r])) << r;
      EXPECT_EQ(std::bit_cast<uint32_t>(sums.sparse[r]), FlashBits(test["y"][r])) << r;
    }
    ++cases;
  }
  EXPECT_GT(cases, 0);
}

TEST(FlashDotTest, PortableKernelsGiveTheSumsOfOthers) {
  LIME_SKIP_WITHOUT_SHARED(FlashCasesPath());
  ExpectSumsOf("portable-f32-1", Numerics::kPortable);
}

TEST(FlashDotTest, KernelsOfTheBf16DotProductGiveTheSumsOfOthers) {
  LIME_SKIP_WITHOUT_SHARED(FlashCasesPath());
  LIME_SKIP_WITHOUT(EmulatedBf16() != nullptr, "a CPU with AVX-512");
  ExpectSumsOf("x86-avx512bf16-1", Numerics::kEmulatedBf16);
  const bool has_instruction = NumericsId(Numerics::kAuto) == std::string("x86-avx512bf16-1");
  if (has_instruction) ExpectSumsOf("x86-avx512bf16-1", Numerics::kAuto);
}

}  // namespace
}  // namespace lime::cpu
