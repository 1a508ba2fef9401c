// The orders of sums: cases of others, and errors of sums that round as badly as they can.
#include "common/proven_zeros/sum_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "common/proven_zeros/rounded_up.h"
#include "gtest/gtest.h"
#include "planner/base/random.h"
#include "tests/cases.h"
#include "tests/flash_cases.h"
#include "tests/scalar_sums.h"

namespace lime {
namespace {

void ExpectBits(float found, const nlohmann::json& bits) {
  EXPECT_EQ(std::bit_cast<uint32_t>(found), FlashBits(bits));
}

TEST(SumOrderTest, SumsOfOthersHaveTheSameBitsWithAndWithoutZeros) {
  LIME_SKIP_WITHOUT_SHARED(FlashCasesPath());
  for (const nlohmann::json& test : FlashCases("dot")) {
    SCOPED_TRACE(test["name"]);
    const SumOrder order = kSumOrderNames.Find(test["order"].get<std::string>()).value();
    const FlashDot dot = FlashDotOf(test);
    ASSERT_EQ(std::ranges::count_if(dot.x, [](float x) { return x != 0; }), test["active"]);
    for (size_t r = 0; r < dot.rows.size(); ++r) {
      const float dense = SumInOrder(order, dot.rows[r], dot.x), skipped = SumInOrder(order, dot.rows[r], dot.x, Products::kNotZero);
      ExpectBits(dense + 0.0f, test["y"][r]);
      ExpectBits(skipped + 0.0f, test["y"][r]);
      if (!test.contains("dense_before")) continue;
      ExpectBits(dense, test["dense_before"][r]);
      ExpectBits(skipped, test["skipped_before"][r]);
    }
  }
}

TEST(SumOrderTest, OtherOrdersHaveNoProof) {
  EXPECT_FALSE(kSumOrderNames.Find("x86-avx512bf16-packed-1").has_value());
  EXPECT_FALSE(kSumOrderNames.Find("torch").has_value());
}

// The lanes' depth, by following one product through the sum.
TEST(SumOrderTest, CountsTheRoundingsOfAProduct) {
  EXPECT_EQ(RoundingsOf(SumOrder::kPortable, 1), 1 + 5 + 1);
  EXPECT_EQ(RoundingsOf(SumOrder::kPortable, 33), 2 + 5 + 1);
  EXPECT_EQ(RoundingsOf(SumOrder::kPortable, 2048), 64 + 5 + 1);
  EXPECT_EQ(RoundingsOf(SumOrder::kPortable, 2049), 64 + 5 + 2);
  EXPECT_EQ(RoundingsOf(SumOrder::kBf16Dot, 1), 2 + 5);
  EXPECT_EQ(RoundingsOf(SumOrder::kBf16Dot, 65), 4 + 5);
  EXPECT_GT(RelativeError(SumOrder::kPortable, 1), 7 * 0x1p-24);
}

// Every lane has 2, and then loses halves of its last place; or random products.
TEST(SumOrderTest, NoSumIsFartherFromTheExactOneThanItsError) {
  double worst = 0;
  for (int seed = 0; seed < Cases(400, 8000); ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<uint64_t>(seed));
    const SumOrder order = random.Chance(50) ? SumOrder::kPortable : SumOrder::kBf16Dot;
    const int cols = 1 + random.Below(random.Chance(20) ? 5000 : 300);
    std::vector<float> w, x;
    const bool loses = random.Chance(50);
    for (int k = 0; k < cols; ++k) {
      w.push_back(loses ? 1.0f : std::ldexp(static_cast<float>(random.Below(255) - 127), -random.Below(6)));
      x.push_back(loses ? (k < 64 ? 1.0f : 0x1p-23f) : static_cast<float>(random.Below(255) - 127));
    }
    double exact = 0, magnitude = 0;  // exact in fp64: few bits, near each other
    for (int k = 0; k < cols; ++k) {
      const double product = double{w[static_cast<size_t>(k)]} * double{x[static_cast<size_t>(k)]};
      exact += product, magnitude += std::abs(product);
    }
    const double error = std::abs(double{SumInOrder(order, w, x)} - exact), bound = RelativeError(order, cols) * magnitude;
    ASSERT_LE(error, bound);
    if (bound > 0) worst = std::max(worst, error / bound);
  }
  EXPECT_GT(worst, 0.5) << "the cases must come near the bound";
}

TEST(RoundedUpTest, NumbersAreNeverBelowTheExactOnes) {
  const float most = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FloatAbove(1.0), 1.0f);
  EXPECT_EQ(FloatAbove(1.0 + 0x1p-50), std::nextafter(1.0f, 2.0f));
  EXPECT_EQ(FloatAbove(-1.0 - 0x1p-50), -1.0f);
  EXPECT_EQ(FloatAbove(1e-60), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(FloatAbove(double{most}), most);
  EXPECT_EQ(FloatAbove(1e39), infinity);
  EXPECT_EQ(FloatAbove(-1e39), -most);
  EXPECT_TRUE(std::isnan(FloatAbove(std::nan(""))));
  const std::vector<float> ones(3, 1.0f);
  EXPECT_GE(NormAbove(std::span<const float>(ones)), std::sqrt(3.0));
  EXPECT_EQ(NormAbove(std::span<const float>()), 0);
}

TEST(StaysFiniteTest, KnowsNoNanAndNoInfinity) {
  EXPECT_TRUE(StaysFinite(0x1p60, 0x1p60));
  EXPECT_FALSE(StaysFinite(0x1p63, 0x1p63));
  EXPECT_FALSE(StaysFinite(std::nan(""), 0));
  EXPECT_FALSE(StaysFinite(0, std::numeric_limits<double>::infinity()));
  EXPECT_DOUBLE_EQ(LargestNormedInput(4096, 1.5, 0.25), 64 * 1.75);
}

}  // namespace
}  // namespace lime
