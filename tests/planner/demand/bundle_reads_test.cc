// Reads of bundles and their time: cases of others, and all ways to join few bundles.
#include "planner/demand/bundle_reads.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/random.h"
#include "tests/cases.h"
#include "tests/flash_cases.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<BundleRead> Joined(std::vector<int32_t> places, const JoinOptions& options) {
  std::vector<BundleRead> reads;
  JoinReads(places, options, reads);
  return reads;
}

TEST(BundleReadsTest, AreThoseOfOthers) {
  LIME_SKIP_WITHOUT_SHARED(FlashCasesPath());
  for (const nlohmann::json& test : FlashCases("reads")) {
    SCOPED_TRACE(test["name"]);
    std::vector<int32_t> places;
    for (const size_t neuron : test["neurons"]) places.push_back(test["place"][neuron]);
    std::ranges::sort(places);
    const JoinOptions options{.bundle_bytes = test["bundle_bytes"], .gap_bytes = test["gap_bytes"], .longest_bytes = test["longest_bytes"]};
    ASSERT_TRUE(CheckJoin(options).ok());
    const std::vector<BundleRead> reads = Joined(places, options);
    nlohmann::json found = nlohmann::json::array();
    for (const BundleRead& read : reads) found.push_back({read.offset, read.bytes});
    EXPECT_EQ(found, test["reads"]);
    EXPECT_EQ(BytesOf(reads), test["bytes"]);
    std::vector<RateBySize> rates;
    for (const nlohmann::json& entry : test["table"]) rates.push_back({.bytes = entry[0], .bytes_per_s = entry[1]});
    ASSERT_TRUE(CheckRates(rates).ok());
    const double seconds = test["seconds"];
    EXPECT_NEAR(SecondsOf(reads, rates), seconds, 1e-14 * seconds);
  }
}

TEST(BundleReadsTest, EveryBundleIsInOneReadAndNoReadCouldHaveJoinedTheNext) {
  for (int seed = 0; seed < Cases(500, 5000); ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<uint64_t>(seed));
    const JoinOptions options{.bundle_bytes = 1 + random.Below(100), .gap_bytes = random.Below(300), .longest_bytes = random.Below(1000)};
    std::vector<int32_t> places;
    for (int32_t place = 0; place < 60; ++place) {
      if (random.Chance(30)) places.push_back(place);
    }
    const std::vector<BundleRead> reads = Joined(places, options);
    size_t next = 0;
    for (size_t i = 0; i < reads.size(); ++i) {
      const Bytes end = reads[i].offset + reads[i].bytes;
      ASSERT_EQ(reads[i].offset, places[next] * options.bundle_bytes) << "it begins with a bundle";
      ASSERT_TRUE(reads[i].bytes == options.bundle_bytes || reads[i].bytes <= options.longest_bytes);
      while (next < places.size() && (places[next] + 1) * options.bundle_bytes <= end) ++next;
      ASSERT_EQ((places[next - 1] + 1) * options.bundle_bytes, end) << "it ends with a bundle";
      if (i + 1 == reads.size()) continue;
      const Bytes gap = reads[i + 1].offset - end, whole = reads[i + 1].offset + options.bundle_bytes - reads[i].offset;
      ASSERT_TRUE(gap > options.gap_bytes || whole > options.longest_bytes);
    }
    ASSERT_EQ(next, places.size());
  }
}

TEST(BundleReadsTest, ThereIsNoReadWithoutABundle) {
  EXPECT_THAT(Joined({}, {.bundle_bytes = 8}), IsEmpty());
  EXPECT_EQ((BurstCost{.burst_ms = 1, .read_ms = 1, .bytes_per_ms = 1}.MsOf(0, 4096)), 0);
  EXPECT_THAT(Joined({2147483647}, {.bundle_bytes = kMostBundleBytes}),
              ElementsAre(BundleRead{.offset = 2147483647 * kMostBundleBytes, .bytes = kMostBundleBytes}));
}

TEST(BundleReadsTest, NumbersOutsideTheirBoundsAreRefused) {
  EXPECT_THAT(std::string(CheckJoin({.bundle_bytes = 0}).message()), HasSubstr("0 bytes"));
  EXPECT_THAT(std::string(CheckJoin({.bundle_bytes = kMostBundleBytes + 1}).message()), HasSubstr("need 1 to"));
  EXPECT_THAT(std::string(CheckJoin({.bundle_bytes = 1, .gap_bytes = -1}).message()), HasSubstr("negative"));
  const auto refused = [](const std::vector<RateBySize>& rates) { return std::string(CheckRates(rates).message()); };
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(refused({{4096, 1e9}, {8192, 1e9}}), "");
  EXPECT_THAT(refused({}), HasSubstr("no entry"));
  EXPECT_THAT(refused({{0, 1e9}}), HasSubstr("entry 0"));
  EXPECT_THAT(refused({{4096, nan}}), HasSubstr("positive and finite"));
  EXPECT_THAT(refused({{4096, infinity}}), HasSubstr("positive and finite"));
  EXPECT_THAT(refused({{4096, 0}}), HasSubstr("positive and finite"));
  EXPECT_THAT(refused({{4096, 1e9}, {4096, 1e9}}), HasSubstr("must ascend"));
  EXPECT_THAT(refused({{4096, 1e9}, {8192, 4e9}}), HasSubstr("takes less time"));
  EXPECT_TRUE(CheckBurst({.burst_ms = 0, .read_ms = 0, .bytes_per_ms = 1}).ok());
  EXPECT_FALSE(CheckBurst({.burst_ms = -1, .read_ms = 0, .bytes_per_ms = 1}).ok());
  EXPECT_FALSE(CheckBurst({.burst_ms = 0, .read_ms = nan, .bytes_per_ms = 1}).ok());
  EXPECT_FALSE(CheckBurst({.burst_ms = 0, .read_ms = 0, .bytes_per_ms = 0}).ok());
  EXPECT_FALSE(CheckBurst({.burst_ms = 0, .read_ms = 0, .bytes_per_ms = infinity}).ok());
}

// 0.1 ms and 8.4 us a read at 1.33 GB/s: bursts that were measured on a shared virtual disk.
TEST(BurstCostTest, IsNearMeasuredBursts) {
  const BurstCost cost{.burst_ms = 0.1, .read_ms = 0.0084, .bytes_per_ms = 1.33e6};
  EXPECT_NEAR(cost.MsOf(128, 16384), 2.61, 0.2);
  EXPECT_NEAR(cost.MsOf(128, 65536), 7.0, 0.6);
  EXPECT_NEAR(cost.MsOf(32, 8192), 0.55, 0.05);
  EXPECT_EQ(cost.WorthReading(), 11172);
}

}  // namespace
}  // namespace lime
