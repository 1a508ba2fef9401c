#include "coordinator/logic/replanner.h"

#include <algorithm>
#include <functional>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

constexpr double kMbit = 125'000;
const absl::Time kFirstRates = absl::FromUnixSeconds(1'000'000);

ClusterRates Rates(double there, double back) {
  return {{LinkKey("a", "b"), there * kMbit}, {LinkKey("b", "a"), back * kMbit}};
}

// Every second; the time of the search that this leads to, or the end.
absl::Time SearchTime(Replanner& replanner, absl::Time now, int seconds, const std::function<ClusterRates(int)>& measured) {
  for (int s = 0; s < seconds; ++s) {
    if (replanner.OnRates(measured(s), now + absl::Seconds(s))) return now + absl::Seconds(s);
  }
  return now + absl::Seconds(seconds);
}

TEST(ReplannerTest, ALastingFallLeadsToOneSearchWithTheNewRates) {
  Replanner replanner({}, Rates(100, 100));
  EXPECT_FALSE(replanner.OnRates(Rates(100, 90), kFirstRates));
  EXPECT_FALSE(replanner.OnRates(Rates(20, 90), kFirstRates + absl::Seconds(1)));
  EXPECT_FALSE(replanner.OnRates(Rates(21, 90), kFirstRates + absl::Seconds(3)));
  const auto rates = replanner.OnRates(Rates(22, 90), kFirstRates + absl::Seconds(4));
  ASSERT_TRUE(rates);
  EXPECT_EQ(*rates, Rates(22, 90));
  EXPECT_EQ(replanner.why(), "link a -> b: 100 -> 22 Mbit/s");
  // 10 ms a step, 100 steps: 1 s saved is no 1.25 times a pause of 0.9.
  EXPECT_FALSE(
      replanner.OnFound(Replanner::Found{.current_ms = 30, .ms_per_step = 20, .pause_ms = 900}, 100, kFirstRates + absl::Seconds(5)));
  // The plan is confirmed for 22 Mbit/s.
  EXPECT_EQ(SearchTime(replanner, kFirstRates + absl::Seconds(6), 100, [](int) { return Rates(20, 90); }),
            kFirstRates + absl::Seconds(106));
  EXPECT_EQ(SearchTime(replanner, kFirstRates + absl::Seconds(106), 100, [](int) { return Rates(100, 100); }),
            kFirstRates + absl::Seconds(109));
}

TEST(ReplannerTest, WhatDoesNotLastOrIsNotOfThePlanIsNoReason) {
  Replanner replanner({}, Rates(100, 100));
  EXPECT_EQ(SearchTime(replanner, kFirstRates, 60, [](int s) { return s % 3 == 0 ? Rates(100, 100) : Rates(20, 100); }),
            kFirstRates + absl::Seconds(60));
  EXPECT_EQ(SearchTime(replanner, kFirstRates, 60,
                       [](int) {
                         return ClusterRates{{LinkKey("a", "c"), 1.0}};
                       }),
            kFirstRates + absl::Seconds(60));
  EXPECT_EQ(SearchTime(replanner, kFirstRates, 60, [](int) { return Rates(129, 77); }), kFirstRates + absl::Seconds(60))
      << "within 1.3 times";
  EXPECT_EQ(SearchTime(replanner, kFirstRates, 60, [](int) { return Rates(131, 100); }), kFirstRates + absl::Seconds(3));
}

TEST(ReplannerTest, WhatWasMeasuredOnceDoesNotLast) {
  Replanner replanner({}, Rates(100, 100));
  const auto look = [&](double rate, int second, int age) {
    return replanner.OnRates(Rates(rate, 100), kFirstRates + absl::Seconds(second), {{LinkKey("a", "b"), absl::Seconds(age)}}).has_value();
  };
  for (int second = 0; second < 9; ++second) EXPECT_FALSE(look(30, second, second)) << second;
  EXPECT_FALSE(look(100, 9, 0)) << "says otherwise";
  EXPECT_FALSE(look(30, 10, 0));
  EXPECT_FALSE(look(30, 12, 0));
  EXPECT_FALSE(look(30, 13, 1));
  EXPECT_TRUE(look(30, 14, 1));
}

TEST(ReplannerTest, WhatIsMeasuredNowAndThenLastsToo) {
  Replanner replanner({}, Rates(100, 100));
  const auto look = [&](std::optional<double> rate, int second) {
    return replanner.OnRates(rate ? Rates(*rate, 100) : ClusterRates(), kFirstRates + absl::Seconds(second)).has_value();
  };
  EXPECT_FALSE(look(30, 0));
  for (int second = 1; second < 29; ++second) EXPECT_FALSE(look(std::nullopt, second));
  EXPECT_TRUE(look(30, 29));
  EXPECT_FALSE(replanner.OnFound(std::nullopt, 1, kFirstRates + absl::Seconds(30)));
  EXPECT_FALSE(look(100, 100));
  for (int second = 101; second < 132; ++second) EXPECT_FALSE(look(std::nullopt, second));
  EXPECT_FALSE(look(100, 132)) << "what was long ago is forgotten";
}

TEST(ReplannerTest, KvThatHasGrownByHalfIsAReasonToLook) {
  Replanner replanner({}, Rates(100, 100));
  const auto grows = [&](int64_t pages, absl::Time now) {
    replanner.OnKv(pages);
    return replanner.OnRates(Rates(100, 100), now).has_value();
  };
  EXPECT_FALSE(grows(100, kFirstRates));
  EXPECT_FALSE(grows(150, kFirstRates + absl::Seconds(1)));
  EXPECT_TRUE(grows(151, kFirstRates + absl::Seconds(2)));
  EXPECT_EQ(replanner.why(), "KV has grown from 100 to 151 pages of each layer");
  EXPECT_FALSE(replanner.OnFound(std::nullopt, 1e9, kFirstRates + absl::Seconds(3)));
  EXPECT_FALSE(grows(226, kFirstRates + absl::Seconds(100))) << "by half of what the last search knew";
  EXPECT_TRUE(grows(227, kFirstRates + absl::Seconds(101)));
  EXPECT_TRUE(
      replanner.OnFound(Replanner::Found{.current_ms = 30, .ms_per_step = 20, .pause_ms = 900}, 1000, kFirstRates + absl::Seconds(102)));
  replanner.OnPlan(Rates(100, 100), kFirstRates + absl::Seconds(102));
  EXPECT_FALSE(grows(300, kFirstRates + absl::Seconds(200))) << "the plan was made for it";
  EXPECT_FALSE(grows(450, kFirstRates + absl::Seconds(201)));
  EXPECT_TRUE(grows(451, kFirstRates + absl::Seconds(202)));
}

TEST(ReplannerTest, AChangePaysOverTheStepsThatAreLeftAndIsFollowedByRest) {
  Replanner replanner({}, Rates(100, 100));
  ASSERT_EQ(SearchTime(replanner, kFirstRates, 10, [](int) { return Rates(20, 20); }), kFirstRates + absl::Seconds(3));
  const absl::Time now = kFirstRates + absl::Seconds(4);
  EXPECT_TRUE(replanner.OnFound(Replanner::Found{.current_ms = 30, .ms_per_step = 20, .pause_ms = 900}, 113, now));
  replanner.OnPlan(Rates(20, 20), now);
  EXPECT_EQ(SearchTime(replanner, now, 60, [](int) { return Rates(100, 100); }), now + absl::Seconds(15));
  EXPECT_FALSE(replanner.OnFound(Replanner::Found{.current_ms = 30, .ms_per_step = 29, .pause_ms = 0}, 1e9, now)) << "hardly better";
}

TEST(ReplannerTest, NoPlanIsNoChange) {
  Replanner replanner({}, Rates(100, 100));
  ASSERT_EQ(SearchTime(replanner, kFirstRates, 10, [](int) { return Rates(20, 20); }), kFirstRates + absl::Seconds(3));
  EXPECT_FALSE(replanner.OnFound(std::nullopt, 1e9, kFirstRates + absl::Seconds(4)));
  EXPECT_FALSE(replanner.searching());
}

TEST(ReplannerTest, WhatIsStaleIsSearchedForAgainSoon) {
  Replanner replanner({}, Rates(100, 100));
  replanner.OnKv(10);
  replanner.OnKv(40);
  ASSERT_TRUE(replanner.OnRates(Rates(100, 100), kFirstRates)) << "KV has grown";
  replanner.OnStale(kFirstRates + absl::Seconds(20));
  EXPECT_FALSE(replanner.OnRates(Rates(100, 100), kFirstRates + absl::Seconds(34)));
  EXPECT_TRUE(replanner.OnRates(Rates(100, 100), kFirstRates + absl::Seconds(35))) << "as it was before the search";
  EXPECT_EQ(replanner.why(), "KV has grown from 10 to 40 pages of each layer");
  EXPECT_FALSE(replanner.OnFound(std::nullopt, 1e9, kFirstRates + absl::Seconds(40)));
  EXPECT_FALSE(replanner.OnRates(Rates(100, 100), kFirstRates + absl::Seconds(1000))) << "what is found out is not";
}

TEST(ReplannerTest, DisksAndComputingHaveABoundOfTheirOwn) {
  const auto speeds = [](double disk, double compute) { return ClusterRates{{DiskKey("a"), disk}, {ComputeKey("a"), compute}}; };
  Replanner replanner({}, speeds(1, 1));
  EXPECT_EQ(SearchTime(replanner, kFirstRates, 60, [&](int) { return speeds(1.45, 0.7); }), kFirstRates + absl::Seconds(60));
  EXPECT_EQ(SearchTime(replanner, kFirstRates, 60, [&](int) { return speeds(0.6, 0.25); }), kFirstRates + absl::Seconds(3));
  EXPECT_EQ(replanner.why(), "computing of a: 1 -> 0.25 times its profile");
}

TEST(ReplannerTest, SearchesThatFindNothingComeEverLessOften) {
  Replanner replanner({}, Rates(100, 100));
  absl::Time now = kFirstRates;
  double rate = 100;
  std::vector<int64_t> rests;
  for (int search = 0; search < 7; ++search) {
    rate = rate == 100 ? 20 : 100;
    const absl::Time found = SearchTime(replanner, now, 1000, [&](int) { return Rates(rate, 100); });
    rests.push_back(absl::ToInt64Seconds(found - now));
    ASSERT_FALSE(replanner.OnFound(std::nullopt, 1e9, found));
    now = found;
  }
  EXPECT_THAT(rests, ::testing::ElementsAre(3, 15, 30, 60, 120, 240, 240));
}

// Rates that jump every few seconds, with noise: changes are never worse, never closer than the
// rest, and searched for within `lasting` and the rest of a change that lasts.
TEST(ReplannerTest, NeverChangesForTheWorseOrWithoutRestWhateverTheLinksDo) {
  const Replanner::Options options;
  int changes = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto draw = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
    double planned = 100, rate = 100;
    Replanner replanner(options, Rates(planned, 100));
    absl::Time now = kFirstRates, jumped = kFirstRates, last = absl::InfinitePast();
    absl::Duration rest = options.rest;
    for (int step = 0; step < 400; ++step) {
      now += absl::Milliseconds(draw(200, 1500));
      if (draw(0, 1) < 0.05) rate = draw(10, 250), jumped = now;
      const auto rates = replanner.OnRates(Rates(rate * draw(0.95, 1.05), 100), now);
      // Well apart, lasting, and rested: it must have been searched for by now.
      const bool apart = std::max(rate / planned, planned / rate) > 1.05 * options.times;
      if (apart && now - jumped > options.lasting + absl::Seconds(2) && now - last > rest + absl::Seconds(2)) {
        EXPECT_TRUE(rates);
      }
      if (!rates) continue;
      EXPECT_GE(now - last, rest);
      if (last != absl::InfinitePast()) rest = std::min(2 * rest, options.most_rest);
      last = now;
      planned = rates->at(LinkKey("a", "b")) / kMbit;
      const Replanner::Found found{.current_ms = draw(10, 100), .ms_per_step = draw(10, 100), .pause_ms = draw(0, 3000)};
      const double remaining = draw(0, 300);
      if (!replanner.OnFound(found, remaining, now)) continue;
      ++changes;
      EXPECT_GT((found.current_ms - found.ms_per_step) * remaining, found.pause_ms);
      replanner.OnPlan(Rates(planned, 100), now);
      rest = options.rest;
    }
  }
  EXPECT_GT(changes, 300);
}

}  // namespace
}  // namespace lime
