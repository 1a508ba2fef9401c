#include "daemon/logic/residency_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/cases.h"

namespace lime {
namespace {

// A machine with `total` for a neighbour and ourselves. The neighbour gets what it wants as far as
// there is memory. Our blocks of `block` are evicted `lag` after the policy asks for it, and are
// loaded again one for each `fill_time`.
class Machine {
 public:
  Machine(Bytes total, Bytes block, const ResidencyPolicy::Options& options)
      : total_(total), block_(block), policy_(options), resident_(options.most) {}

  absl::Duration lag = absl::ZeroDuration();
  absl::Duration fill_time = absl::ZeroDuration();
  absl::Duration stalled;
  absl::Time start = absl::UnixEpoch();  // of the next play
  Bytes reclaimable = 0;                 // counted as available and not free

  Bytes available() const { return total_ - neighbour_ - resident_; }
  Bytes resident() const { return resident_; }
  Bytes neighbour() const { return neighbour_; }
  ResidencyPolicy& policy() { return policy_; }

  Bytes Sample(Bytes neighbour_wants, absl::Time now) {
    Move(now);
    neighbour_ = std::min(neighbour_wants, total_ - resident_);
    MemorySample sample{.available = available()};
    sample.machine = {.stalled = stalled, .free = sample.available - reclaimable};
    const Bytes before = policy_.target();
    policy_.OnSample(sample, resident_, now);
    if (policy_.target() < before && lag > absl::ZeroDuration()) shed_at_ = std::max(shed_at_, now + lag);
    Move(now);
    return policy_.target();
  }

 private:
  void Move(absl::Time now) {
    while (resident_ > policy_.target() && resident_ > 0 && now >= shed_at_) resident_ -= std::min(block_, resident_);
    while (resident_ + block_ <= policy_.target() && now >= filled_at_ + fill_time) {
      resident_ += block_;
      filled_at_ = now;
    }
  }

  const Bytes total_, block_;
  ResidencyPolicy policy_;
  Bytes resident_, neighbour_ = 0;
  absl::Time shed_at_ = absl::InfinitePast(), filled_at_ = absl::InfinitePast();
};

// Sizes in MB, for people.
ResidencyPolicy::Options SmallOptions() {
  return {.most = 1000, .reserve = 100, .block = 50};
}

const char* ReasonText(ResidencyPolicy::Reason reason) {
  switch (reason) {
    case ResidencyPolicy::Reason::kPlan:
      return "as planned";
    case ResidencyPolicy::Reason::kRoom:
      return "room fell below the reserve";
    case ResidencyPolicy::Reason::kStall:
      return "tasks waited for memory";
    case ResidencyPolicy::Reason::kEmergency:
      return "next to nothing was available";
    case ResidencyPolicy::Reason::kRegained:
      return "the pressure has passed";
  }
  return "";
}

// Samples every 250 ms from 0 on; a line for every change: "1.25s neighbour 700: 1000 -> 375, room
// fell below the reserve".
std::string Play(Machine& machine, absl::Duration length, const std::function<Bytes(double seconds)>& neighbour) {
  std::string text;
  for (absl::Duration at; at <= length; at += absl::Milliseconds(250)) {
    const double seconds = absl::ToDoubleSeconds(at);
    const Bytes before = machine.policy().target();
    const Bytes after = machine.Sample(neighbour(seconds), machine.start + at);
    if (after == before) continue;
    absl::StrAppendFormat(&text, "%.2fs neighbour %d: %d -> %d, %s\n", seconds, machine.neighbour(), before, after,
                          ReasonText(machine.policy().reason()));
  }
  machine.start += length + absl::Milliseconds(250);
  return text;
}

// ---- transcripts

TEST(ResidencyPolicyTest, ANeighbourThatComesAndGoesGetsRoomAtOnceAndTheBlocksComeBackInSteps) {
  Machine machine(1500, 50, SmallOptions());
  EXPECT_EQ(Play(machine, absl::Seconds(60), [](double s) { return s < 1    ? 0
                                                                   : s < 20 ? 1200
                                                                            : 0; }),
            "1.00s neighbour 500: 1000 -> 875, room fell below the reserve\n"
            "1.25s neighbour 650: 875 -> 725, room fell below the reserve\n"
            "1.50s neighbour 800: 725 -> 575, room fell below the reserve\n"
            "1.75s neighbour 950: 575 -> 425, room fell below the reserve\n"
            "2.00s neighbour 1100: 425 -> 275, room fell below the reserve\n"
            "2.25s neighbour 1200: 275 -> 175, room fell below the reserve\n"
            "22.00s neighbour 0: 175 -> 382, the pressure has passed\n"
            "23.00s neighbour 0: 382 -> 589, the pressure has passed\n"
            "24.00s neighbour 0: 589 -> 796, the pressure has passed\n"
            "25.00s neighbour 0: 796 -> 1000, the pressure has passed\n");
  EXPECT_EQ(machine.resident(), 1000);
}

TEST(ResidencyPolicyTest, ANeighbourThatGrowsEvictsBlockAfterBlock) {
  Machine machine(1500, 50, SmallOptions());
  EXPECT_EQ(Play(machine, absl::Seconds(10), [](double s) { return static_cast<Bytes>(100 * s); }),
            "4.25s neighbour 425: 1000 -> 950, room fell below the reserve\n"
            "4.75s neighbour 475: 950 -> 900, room fell below the reserve\n"
            "5.25s neighbour 525: 900 -> 850, room fell below the reserve\n"
            "5.75s neighbour 575: 850 -> 800, room fell below the reserve\n"
            "6.25s neighbour 625: 800 -> 750, room fell below the reserve\n"
            "6.75s neighbour 675: 750 -> 700, room fell below the reserve\n"
            "7.25s neighbour 725: 700 -> 650, room fell below the reserve\n"
            "7.75s neighbour 775: 650 -> 600, room fell below the reserve\n"
            "8.25s neighbour 825: 600 -> 550, room fell below the reserve\n"
            "8.75s neighbour 875: 550 -> 500, room fell below the reserve\n"
            "9.25s neighbour 925: 500 -> 450, room fell below the reserve\n"
            "9.75s neighbour 975: 450 -> 400, room fell below the reserve\n");
}

TEST(ResidencyPolicyTest, APartThatANeighbourFreesComesBack) {
  Machine machine(1500, 50, SmallOptions());
  EXPECT_EQ(Play(machine, absl::Seconds(60), [](double s) { return s < 1    ? 0
                                                                   : s < 10 ? 1200
                                                                            : 700; }),
            "1.00s neighbour 500: 1000 -> 875, room fell below the reserve\n"
            "1.25s neighbour 650: 875 -> 725, room fell below the reserve\n"
            "1.50s neighbour 800: 725 -> 575, room fell below the reserve\n"
            "1.75s neighbour 950: 575 -> 425, room fell below the reserve\n"
            "2.00s neighbour 1100: 425 -> 275, room fell below the reserve\n"
            "2.25s neighbour 1200: 275 -> 175, room fell below the reserve\n"
            "12.00s neighbour 700: 175 -> 382, the pressure has passed\n"
            "13.00s neighbour 700: 382 -> 589, the pressure has passed\n"
            "14.00s neighbour 700: 589 -> 675, the pressure has passed\n");
  EXPECT_GE(machine.available(), 125) << "reserve and margin";
}

TEST(ResidencyPolicyTest, ANeighbourThatUsesAllFreedMemoryIsFoughtLessAndLess) {
  Machine machine(1500, 50, SmallOptions());
  // It lets go when it has enough, and comes back whenever something was regained.
  EXPECT_EQ(Play(machine, absl::Seconds(30), [&](double) { return machine.policy().target() > 300 ? 1200 : 0; }),
            "0.00s neighbour 500: 1000 -> 875, room fell below the reserve\n"
            "0.25s neighbour 650: 875 -> 725, room fell below the reserve\n"
            "0.50s neighbour 800: 725 -> 575, room fell below the reserve\n"
            "0.75s neighbour 950: 575 -> 425, room fell below the reserve\n"
            "1.00s neighbour 1100: 425 -> 275, room fell below the reserve\n"
            "3.25s neighbour 0: 275 -> 457, the pressure has passed\n"
            "3.50s neighbour 1050: 457 -> 325, room fell below the reserve\n"
            "3.75s neighbour 1200: 325 -> 175, room fell below the reserve\n"
            "8.00s neighbour 0: 175 -> 382, the pressure has passed\n"
            "8.25s neighbour 1150: 382 -> 225, room fell below the reserve\n"
            "14.50s neighbour 0: 225 -> 419, the pressure has passed\n"
            "14.75s neighbour 1100: 419 -> 275, room fell below the reserve\n"
            "21.00s neighbour 0: 275 -> 457, the pressure has passed\n"
            "21.25s neighbour 1050: 457 -> 325, room fell below the reserve\n"
            "21.50s neighbour 1200: 325 -> 175, room fell below the reserve\n"
            "27.75s neighbour 0: 175 -> 382, the pressure has passed\n"
            "28.00s neighbour 1150: 382 -> 225, room fell below the reserve\n");
}

TEST(ResidencyPolicyTest, ARoomThatFlickersIsNotUsed) {
  Machine machine(1500, 50, SmallOptions());
  // Away for 1.5 s of every 2.
  EXPECT_EQ(Play(machine, absl::Seconds(60), [](double s) { return s - 2 * static_cast<int>(s / 2) < 0.5 ? 1000 : 0; }),
            "0.00s neighbour 500: 1000 -> 875, room fell below the reserve\n"
            "0.25s neighbour 650: 875 -> 725, room fell below the reserve\n"
            "2.00s neighbour 800: 725 -> 575, room fell below the reserve\n"
            "2.25s neighbour 950: 575 -> 425, room fell below the reserve\n"
            "4.00s neighbour 1000: 425 -> 375, room fell below the reserve\n");
}

TEST(ResidencyPolicyTest, WithAlmostNoAvailableMemoryAllWeightsAreShed) {
  ResidencyPolicy::Options options = SmallOptions();
  options.emergency = 25;
  Machine machine(1500, 50, options);
  EXPECT_EQ(Play(machine, absl::Seconds(12), [](double s) { return s < 1   ? 0
                                                                   : s < 2 ? 470
                                                                   : s < 3 ? 1400
                                                                           : 0; }),
            "1.00s neighbour 470: 1000 -> 905, room fell below the reserve\n"
            "2.00s neighbour 600: 905 -> 0, next to nothing was available\n"
            "5.00s neighbour 0: 0 -> 250, the pressure has passed\n"
            "6.00s neighbour 0: 250 -> 500, the pressure has passed\n"
            "7.00s neighbour 0: 500 -> 750, the pressure has passed\n"
            "8.00s neighbour 0: 750 -> 1000, the pressure has passed\n");
}

TEST(ResidencyPolicyTest, StallsWithoutFreeMemoryShedAQuarterEverySecondWhateverIsCalledAvailable) {
  Machine machine(3000, 50, SmallOptions());
  machine.reclaimable = 2950;  // somebody's hot page cache: available, and not free
  EXPECT_EQ(Play(machine, absl::Seconds(12),
                 [&](double s) {
                   machine.stalled = s >= 1 && s < 3.5 ? absl::Milliseconds(60) : absl::ZeroDuration();
                   return 0;
                 }),
            "1.25s neighbour 0: 1000 -> 750, tasks waited for memory\n"
            "2.25s neighbour 0: 750 -> 563, tasks waited for memory\n"
            "3.25s neighbour 0: 563 -> 413, tasks waited for memory\n"
            "5.25s neighbour 0: 413 -> 560, the pressure has passed\n"
            "6.25s neighbour 0: 560 -> 707, the pressure has passed\n"
            "7.25s neighbour 0: 707 -> 854, the pressure has passed\n"
            "8.25s neighbour 0: 854 -> 1000, the pressure has passed\n");
}

TEST(ResidencyPolicyTest, StallsWhileMemoryIsFreeAreSomebodyElsesLimit) {
  Machine machine(3000, 50, SmallOptions());
  machine.stalled = absl::Milliseconds(200);
  EXPECT_EQ(Play(machine, absl::Seconds(5), [](double) { return 0; }), "");
}

TEST(ResidencyPolicyTest, StallsOfOurOwnGroupCountByItsOwnRoom) {
  ResidencyPolicy policy(SmallOptions());
  MemorySample sample{.available = 500};
  sample.group = {.stalled = absl::Milliseconds(120), .free = 20};
  EXPECT_EQ(policy.OnSample(sample, 1000, absl::UnixEpoch()), 750);
  EXPECT_EQ(policy.reason(), ResidencyPolicy::Reason::kStall);
}

TEST(ResidencyPolicyTest, WhileBlocksStillLeaveTheSameShortageShedsNothingMore) {
  Machine machine(1500, 50, SmallOptions());
  machine.lag = absl::Seconds(3);  // of a token that takes so long
  EXPECT_EQ(Play(machine, absl::Seconds(10), [](double s) { return s < 1 ? 0 : 700; }),
            "1.00s neighbour 500: 1000 -> 875, room fell below the reserve\n"
            "4.00s neighbour 650: 875 -> 725, room fell below the reserve\n"
            "7.00s neighbour 700: 725 -> 675, room fell below the reserve\n");
  EXPECT_EQ(machine.resident(), 650);
}

TEST(ResidencyPolicyTest, ASmallerPlanIsObeyedAndALargerOneComesInSteps) {
  Machine machine(1500, 50, SmallOptions());
  machine.policy().SetMost(600);  // KV has grown
  EXPECT_EQ(machine.policy().target(), 600);
  EXPECT_EQ(Play(machine, absl::Seconds(10), [](double) { return 0; }), "");
  machine.policy().SetMost(700);
  EXPECT_EQ(Play(machine, absl::Seconds(10), [](double) { return 0; }),
            "0.00s neighbour 0: 600 -> 650, the pressure has passed\n"
            "1.00s neighbour 0: 650 -> 700, the pressure has passed\n");
}

// ---- properties

struct Counts {
  int sheds = 0;
  int regains = 0;
};

// Plays 180 s of a neighbour that the seed makes up, and that stays as it is for the last 120;
// checks every sample.
Counts PlayRandom(uint32_t seed) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto pick = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  const Bytes block = pick(1, 200), most = block * pick(1, 60), reserve = pick(most / 20, most / 3);
  const Bytes total = most + reserve + reserve / 4 + pick(0, 2000);
  Machine machine(total, block, {.most = most, .reserve = reserve, .block = block});
  machine.lag = absl::Milliseconds(pick(0, 1) * pick(0, 3000));
  machine.fill_time = absl::Milliseconds(pick(0, 200));
  Counts counts;
  Bytes wants = 0;
  absl::Time now = absl::UnixEpoch();
  const absl::Time quiet = now + absl::Seconds(60), end = now + absl::Seconds(300);
  std::optional<absl::Time> last_shed;
  while (now < end) {
    now += absl::Milliseconds(pick(20, 250));
    if (now < quiet && pick(0, 39) == 0) wants = pick(0, 3) == 0 ? 0 : pick(0, total);
    if (now >= quiet) wants = std::min(wants, machine.neighbour());
    const bool calm = now > quiet + absl::Seconds(5);
    machine.stalled = !calm && pick(0, 49) == 0 ? absl::Milliseconds(pick(0, 200)) : absl::ZeroDuration();
    machine.reclaimable = pick(0, reserve);
    const Bytes before = machine.policy().target();
    const Bytes target = machine.Sample(wants, now);
    EXPECT_GE(target, 0);
    EXPECT_LE(target, most) << "above the plan";
    EXPECT_LE(machine.policy().hold(), absl::Seconds(6));
    counts.sheds += target < before;
    counts.regains += target > before;
    if (target < before) {
      EXPECT_FALSE(calm) << "gave back what no neighbour asked for";
      last_shed = now;
    }
    if (target > before) {
      EXPECT_TRUE(!last_shed || now - *last_shed >= absl::Seconds(2)) << "taken back at once";
      EXPECT_GE(machine.available() + machine.resident() - target, reserve) << "took from the reserve";
    }
    if (machine.lag == absl::ZeroDuration() && machine.resident() > 0) {
      EXPECT_GE(machine.available(), reserve) << "given back too late";
    }
  }
  // Everything that there is room for has come back, but for what is smaller than a block.
  const Bytes fits = std::min(most, total - machine.neighbour() - reserve - reserve / 4);
  EXPECT_GE(machine.resident(), fits - 2 * block);
  return counts;
}

TEST(ResidencyPolicyTest, RandomNeighboursNeverMakeItExceedThePlanUseTheReserveOrOscillate) {
  Counts all;
  for (uint32_t seed = 1; seed <= static_cast<uint32_t>(Cases(500, 2000)) && !::testing::Test::HasFailure(); ++seed) {
    const Counts counts = PlayRandom(seed);
    all.sheds += counts.sheds;
    all.regains += counts.regains;
  }
  if (!ManyCases()) return;
  EXPECT_GT(all.sheds, 1000);
  EXPECT_GT(all.regains, 500);
}

TEST(ResidencyPolicyTest, AfterALoneNeighboursEndEverythingIsBackWithinFiveSeconds) {
  for (Bytes neighbour = 500; neighbour <= 1500; neighbour += 100) {
    Machine machine(1500, 50, SmallOptions());
    Play(machine, absl::Seconds(65), [&](double s) { return s >= 10 && s < 60 ? neighbour : 0; });
    EXPECT_EQ(machine.resident(), 1000) << neighbour;
  }
}

TEST(ResidencyPolicyTest, CountsHowOftenTheTargetFalls) {
  Machine machine(1500, 50, SmallOptions());
  int falls = 0;
  for (absl::Duration at; at < absl::Minutes(5); at += absl::Milliseconds(100)) {
    const Bytes before = machine.policy().target();
    falls += machine.Sample(before > 300 ? 1200 : 0, absl::UnixEpoch() + at) < before;
  }
  EXPECT_GT(falls, 10);
  EXPECT_EQ(machine.policy().falls(), falls);
}

TEST(ResidencyPolicyTest, AgainstTheWorstNeighbourItTurnsEverySixSecondsAtMost) {
  Machine machine(1500, 50, SmallOptions());
  int turns = 0;
  bool rising = false;
  for (absl::Duration at; at < absl::Hours(1); at += absl::Milliseconds(100)) {
    const Bytes before = machine.policy().target();
    const Bytes after = machine.Sample(before > 300 ? 1200 : 0, absl::UnixEpoch() + at);  // wants whatever was just taken back
    turns += rising && after < before;
    if (after != before) rising = after > before;
  }
  EXPECT_LE(turns, 2 + 3600 / 6);
  EXPECT_GE(turns, 100) << "it tries again";
}

}  // namespace
}  // namespace lime
