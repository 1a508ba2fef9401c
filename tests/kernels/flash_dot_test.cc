// Sums of others in both orders, of inputs that are mostly zero: what a sparse layer must give bit for
// bit, the dense kernels give.
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
#include "tests/skips.h"

namespace lime::cpu {
namespace {

std::vector<BF16> InBf16(const std::vector<float>& values) {
  std::vector<BF16> out;
  for (const float value : values) out.push_back(FromFloat<BF16>(value));
  return out;
}

std::vector<float> Apply(const FlashDot& dot, Numerics numerics) {
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
  std::vector<float> y(dot.rows.size());
  const LinearTask task{.weight = &matrix, .out = y.data(), .out_stride = rows};
  Linear(pool, ws, x.data(), DType::kBF16, 1, cols, {&task, 1});
  return y;
}

void ExpectSumsOf(std::string_view order, Numerics numerics) {
  int cases = 0;
  for (const nlohmann::json& test : FlashCases("dot")) {
    if (test["order"] != order) continue;
    SCOPED_TRACE(test["name"]);
    const std::vector<float> y = Apply(FlashDotOf(test), numerics);
    for (size_t r = 0; r < y.size(); ++r) EXPECT_EQ(std::bit_cast<uint32_t>(y[r] + 0.0f), FlashBits(test["y"][r])) << r;
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
