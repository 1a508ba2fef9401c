#include "coordinator/logic/clock_alignment.h"

#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace lime {
namespace {

// A clock that began elsewhere and runs a little faster or slower than ours, behind a way whose
// delays change from message to message.
class OtherDevice {
 public:
  OtherDevice(uint64_t seed, double most_delay_ms) : random_(seed), most_delay_ms_(most_delay_ms) {
    offset_ms_ = Draw(-1e9, 1e9);
    rate_ = 1 + Draw(-0.9, 0.9) * kMaxClockDrift;
  }

  double Theirs(double ours_ms) const { return (ours_ms - offset_ms_) * rate_; }
  ClockSample Ask(double now_ms) {
    const double there = now_ms + Draw(0.01, most_delay_ms_), answered = there + Draw(0, 1), back = answered + Draw(0.01, most_delay_ms_);
    return {.sent_ms = now_ms, .received_ms = Theirs(there), .answered_ms = Theirs(answered), .came_ms = back};
  }
  double Draw(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }

 private:
  std::mt19937_64 random_;
  const double most_delay_ms_;
  double offset_ms_ = 0, rate_ = 1;
};

TEST(ClockAlignmentTest, ErrsByNoMoreThanItSaysWhateverOffsetDelaysAndDrift) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    OtherDevice device(seed, seed % 2 == 0 ? 0.2 : 50);
    ClockAlignment clock;
    for (int i = 0; i < 40; ++i) ASSERT_TRUE(clock.Add(device.Ask(1e6 + 250 * i))) << "seed " << seed;
    EXPECT_EQ(clock.samples(), 40);
    for (int ms = 990'000; ms < 1'030'000; ms += 617) {
      const double ours_ms = ms;
      const double theirs_ms = device.Theirs(ours_ms);
      EXPECT_LE(std::abs(clock.ToOurs(theirs_ms) - ours_ms), clock.ErrorMs(theirs_ms) + 1e-6) << "seed " << seed;
    }
  }
}

TEST(ClockAlignmentTest, BelievesTheShortestRoundTripWheneverItCame) {
  ClockAlignment clock;
  EXPECT_TRUE(clock.Add({.sent_ms = 100, .received_ms = 5000, .answered_ms = 5001, .came_ms = 141}));
  EXPECT_EQ(clock.round_trip_ms(), 40);
  EXPECT_TRUE(clock.Add({.sent_ms = 200, .received_ms = 5081, .answered_ms = 5085, .came_ms = 206}));
  EXPECT_EQ(clock.round_trip_ms(), 2);
  EXPECT_DOUBLE_EQ(clock.ToOurs(5083), 203);
  EXPECT_DOUBLE_EQ(clock.ErrorMs(5083), 1);
  EXPECT_TRUE(clock.Add({.sent_ms = 300, .received_ms = 5190, .answered_ms = 5191, .came_ms = 331}));
  EXPECT_DOUBLE_EQ(clock.ToOurs(5083), 203);
  EXPECT_NEAR(clock.ErrorMs(15083), 1 + 10000 * kMaxClockDrift, 1e-9);
}

TEST(ClockAlignmentTest, SamplesThatCannotBeChangeNothing) {
  ClockAlignment clock;
  ASSERT_TRUE(clock.Add({.sent_ms = 0, .received_ms = 10, .answered_ms = 11, .came_ms = 4}));
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (const ClockSample& sample : {ClockSample{5, 10, 11, 4}, ClockSample{0, 11, 10, 4}, ClockSample{0, 10, 20, 4},
                                    ClockSample{0, nan, 11, 4}, ClockSample{0, 10, infinity, 4}, ClockSample{nan, 10, 11, 4}}) {
    EXPECT_FALSE(clock.Add(sample));
  }
  EXPECT_EQ(clock.samples(), 1);
  EXPECT_EQ(clock.round_trip_ms(), 3);
}

}  // namespace
}  // namespace lime
