#include "coordinator/cluster_view/token_meter.h"

#include "gtest/gtest.h"

namespace lime {
namespace {

constexpr absl::Time After(double seconds) {
  return absl::UnixEpoch() + absl::Hours(5) + absl::Seconds(seconds);
}

TEST(TokenMeterTest, ThereIsNoTimeOfATokenBeforeTheSecondToken) {
  TokenMeter meter;
  EXPECT_EQ(meter.MsPerToken(), std::nullopt);
  EXPECT_EQ(meter.TokensPerSecond(After(0)), 0);
  meter.OnToken(After(0), std::nullopt);
  EXPECT_EQ(meter.MsPerToken(), std::nullopt);
}

TEST(TokenMeterTest, TimesAreOfOneRequestAndTheRateOfAll) {
  TokenMeter meter;
  for (int i = 0; i < 100; ++i) {
    for (int request = 0; request < 2; ++request)
      meter.OnToken(After(0.1 * i), i > 0 ? std::optional(absl::Milliseconds(100)) : std::nullopt);
  }
  EXPECT_NEAR(*meter.MsPerToken(), 100, 1e-9);
  EXPECT_NEAR(meter.TokensPerSecond(After(9.99)), 20, 0.1);
}

TEST(TokenMeterTest, AfterTheLastTokenTheRateFallsToZeroAndTheTimeStays) {
  TokenMeter meter;
  for (int i = 0; i < 50; ++i) meter.OnToken(After(0.1 * i), absl::Milliseconds(100));
  EXPECT_LT(meter.TokensPerSecond(After(7.5)), 8);
  EXPECT_EQ(meter.TokensPerSecond(After(13)), 0);
  EXPECT_NEAR(*meter.MsPerToken(), 100, 1e-9);
}

TEST(TokenMeterTest, WhatWasLongAgoDoesNotCountBesideNewTokens) {
  TokenMeter meter;
  for (int i = 0; i < 80; ++i) meter.OnToken(After(0.1 * i), absl::Milliseconds(100));
  meter.OnToken(After(100), std::nullopt);
  meter.OnToken(After(100.5), absl::Milliseconds(500));
  EXPECT_NEAR(*meter.MsPerToken(), 500, 1e-9);
  EXPECT_NEAR(meter.TokensPerSecond(After(100.9)), 2, 1e-9);
}

}  // namespace
}  // namespace lime
