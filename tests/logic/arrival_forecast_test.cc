#include "daemon/logic/rates/arrival_forecast.h"

#include <cmath>

#include "gtest/gtest.h"
#include "planner/base/random.h"

namespace lime {
namespace {

TEST(ArrivalForecastTest, NothingIsExpectedBeforeEnoughIsKnown) {
  ArrivalForecast forecast(2);
  for (int i = 0; i + 1 < ArrivalForecast::kRemembered; ++i) {
    forecast.Waited(0, 15);
    EXPECT_FALSE(forecast.Expect(0).has_value());
  }
  forecast.Waited(0, 15);
  EXPECT_TRUE(forecast.Expect(0).has_value());
  EXPECT_FALSE(forecast.Expect(1).has_value()) << "places know nothing of one another";
}

TEST(ArrivalForecastTest, OneLateArrivalOfFiveChangesLittle) {
  ArrivalForecast forecast(1);
  for (const double ms : {15.0, 15.1, 80.0, 14.9, 15.0}) forecast.Waited(0, ms);
  const auto window = forecast.Expect(0);
  ASSERT_TRUE(window.has_value());
  EXPECT_GT(window->from_ms, 14);
  EXPECT_LT(window->from_ms, 14.95);
  EXPECT_GT(window->to_ms, 15.05);
  EXPECT_LT(window->to_ms, 16.1);
}

TEST(ArrivalForecastTest, WaitsThatDifferAreSleptThrough) {
  ArrivalForecast forecast(1);
  for (const double ms : {5.0, 30.0, 60.0, 10.0, 45.0}) forecast.Waited(0, ms);
  EXPECT_FALSE(forecast.Expect(0).has_value());
}

TEST(ArrivalForecastTest, ItFollowsAnotherPace) {
  ArrivalForecast forecast(1);
  for (int i = 0; i < 20; ++i) forecast.Waited(0, 15);
  for (int i = 0; i < ArrivalForecast::kRemembered; ++i) forecast.Waited(0, 40);
  const auto window = forecast.Expect(0);
  ASSERT_TRUE(window.has_value());
  EXPECT_LE(window->from_ms, 40);
  EXPECT_GE(window->to_ms, 40);
  EXPECT_GT(window->from_ms, 35);
}

// With waits that scatter by a hundredth most arrivals are caught, and what is spent awake stays
// within its bound.
TEST(ArrivalForecastTest, MostArrivalsComeInAShortWindow) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    const double usual = 1 + 50 * random.Uniform();
    ArrivalForecast forecast(1);
    int expected = 0, caught = 0;
    for (int i = 0; i < 400; ++i) {
      const double ms = usual * (1 + 0.01 * (random.Uniform() + random.Uniform() - 1));
      if (const auto window = forecast.Expect(0)) {
        ++expected;
        caught += ms >= window->from_ms && ms <= window->to_ms ? 1 : 0;
        EXPECT_LE(window->to_ms - window->from_ms,
                  2 * std::max(0.05, std::min(ArrivalForecast::kMostMs, ArrivalForecast::kMostShare * usual * 1.01)) + 1e-9);
      }
      forecast.Waited(0, ms);
    }
    EXPECT_EQ(expected, 400 - ArrivalForecast::kRemembered) << "seed " << seed;
    EXPECT_GT(caught, expected * 0.8) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lime
