// The search for another plan in the background, with links that are told instead of measured.
#include "coordinator/serving/plan_watcher.h"

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr double kMbit = 125'000;
constexpr int kSome = 20, kMany = 1000;  // looks; a change has to last for four

Plan PlanOf(int64_t epoch, double ms_per_step) {
  Plan plan;
  plan.epoch = epoch;
  plan.predicted.ms_per_step = ms_per_step;
  return plan;
}

class PlanWatcherTest : public ::testing::Test {
 protected:
  PlanWatcher::Candidate Found() const {
    return {.plan = PlanOf(0, 20),
            .ms_per_step = 20,
            .current_ms = 30,
            .taking_over = taking_over_,
            .computing_again = {.fixed_ms = 200, .position_ms = 4},
            .going_back = {.fixed_ms = 1000},
            .most_pages = most_pages_};
  }
  PlanWatcher::Options Options() {
    return {.when = {.lasting = absl::Milliseconds(20), .rest = absl::Milliseconds(20)},
            .look = absl::InfiniteDuration(),  // the tests look
            .now = [this] { return now_; },
            .planned =
                [](const Plan&) {
                  return ClusterRates{{LinkKey("a", "b"), 100 * kMbit}};
                },
            .measure =
                [this](const Plan&, RateAges&) {
                  return ClusterRates{{LinkKey("a", "b"), mbit_ * kMbit}};
                },
            .search = [this](const PlanWatcher::Search& search) -> absl::StatusOr<PlanWatcher::Candidate> {
              ++searches_;
              searched_with_ = search.now.at(LinkKey("a", "b")) / kMbit;
              if (!fits_) return absl::ResourceExhaustedError("nothing fits");
              return Found();
            },
            .say = [this](const std::string& sentence) { said_ = sentence; }};
  }
  // What Next answers, asked as a run asks it, until the watcher has looked so often.
  std::optional<ClusterRun::Change> Await(PlanWatcher& watcher, const OrderWriter::Remaining& remaining, int looks = kMany) {
    for (int i = 0; i < looks; ++i) {
      if (auto change = watcher.Next(remaining)) return change;
      Look(watcher);
    }
    return watcher.Next(remaining);
  }
  template <typename Holds>
  bool Becomes(PlanWatcher& watcher, Holds holds) {
    for (int i = 0; i < kMany && !holds(); ++i) Look(watcher);
    return holds();
  }
  void Look(PlanWatcher& watcher) {
    now_ += absl::Milliseconds(5);
    watcher.Look();
  }

  absl::Time now_ = absl::UnixEpoch();
  std::optional<Pause> taking_over_ = Pause{.fixed_ms = 100, .position_ms = 1};
  std::atomic<int64_t> most_pages_ = 1000;
  std::atomic<double> mbit_ = 100;
  std::atomic<bool> fits_ = true;
  std::atomic<int> searches_ = 0;
  std::atomic<double> searched_with_ = 0;
  std::string said_;
};

TEST_F(PlanWatcherTest, ASlowLinkLeadsToAPlanWithItsReasonAndItsPause) {
  PlanWatcher watcher(Options(), PlanOf(1, 30));
  EXPECT_FALSE(Await(watcher, {.steps = 1000, .known = 50, .decodes = true}, kSome));
  EXPECT_EQ(searches_, 0);
  mbit_ = 20;
  const auto change = Await(watcher, {.steps = 1000, .known = 50, .decodes = true});
  ASSERT_TRUE(change);
  EXPECT_EQ(change->plan.predicted.ms_per_step, 20);
  EXPECT_EQ(change->taking_over, absl::Milliseconds(150)) << "to install, and 50 positions";
  EXPECT_EQ(change->computing_again, absl::Milliseconds(400));
  EXPECT_EQ(change->going_back, absl::Seconds(1));
  EXPECT_EQ(change->why, "link a -> b: 100 -> 20 Mbit/s; a step would take 30.0 ms, with another plan 20.0 ms");
  // Installed: it was made for 20 Mbit/s.
  watcher.OnPlan(PlanOf(2, 20));
  EXPECT_FALSE(Await(watcher, {.steps = 1000, .known = 50, .decodes = true}, kSome));
  EXPECT_EQ(searches_, 1);
  mbit_ = 100;
  EXPECT_TRUE(Await(watcher, {.steps = 1000, .known = 50, .decodes = true}));
  EXPECT_EQ(searched_with_, 100);
}

TEST_F(PlanWatcherTest, WhereKvCannotBeTakenOverTheChangeHasToPayForComputingItAgain) {
  taking_over_ = std::nullopt;
  PlanWatcher watcher(Options(), PlanOf(1, 30));
  mbit_ = 20;
  const auto change = Await(watcher, {.steps = 51, .known = 50, .decodes = true});
  ASSERT_TRUE(change) << "510 ms saved by a pause of 400";
  EXPECT_FALSE(change->taking_over);
  EXPECT_EQ(change->computing_again, absl::Milliseconds(400));
  PlanWatcher another(Options(), PlanOf(1, 30));
  ASSERT_TRUE(Becomes(another, [&] { return searches_ == 2; }));
  EXPECT_FALSE(Await(another, {.steps = 49, .known = 50, .decodes = true}, kSome)) << "490 ms saved";
}

// What is measured is beside the plan, what is searched with beside the profile: a plan that was
// made for half the computing computes as it says.
TEST_F(PlanWatcherTest, APlanForASlowerDeviceIsMeasuredByWhatItWasMadeFor) {
  std::atomic<double> beside_plan = 1, made_with = 0, now = 0;
  PlanWatcher::Options options = Options();
  options.planned = [](const Plan&) { return ClusterRates{{ComputeKey("a"), 1}}; };
  options.measure = [&](const Plan&, RateAges&) { return ClusterRates{{ComputeKey("a"), beside_plan}}; };
  options.search = [&](const PlanWatcher::Search& search) -> absl::StatusOr<PlanWatcher::Candidate> {
    ++searches_;
    made_with = search.made_with.contains(ComputeKey("a")) ? search.made_with.at(ComputeKey("a")) : 1;
    now = search.now.at(ComputeKey("a"));
    return Found();
  };
  PlanWatcher watcher(options, PlanOf(1, 30));
  beside_plan = 0.5;
  const auto change = Await(watcher, {.steps = 1000, .known = 50, .decodes = true});
  ASSERT_TRUE(change);
  EXPECT_EQ(made_with, 1);
  EXPECT_EQ(now, 0.5);
  beside_plan = 1;
  watcher.OnPlan(PlanOf(2, 20));
  EXPECT_FALSE(Await(watcher, {.steps = 1000, .known = 50, .decodes = true}, kSome));
  EXPECT_EQ(searches_, 1);
  beside_plan = 2;  // as fast as at first
  ASSERT_TRUE(Await(watcher, {.steps = 1000, .known = 50, .decodes = true}));
  EXPECT_EQ(made_with, 0.5);
  EXPECT_EQ(now, 1);
  // What is installed instead is another plan, made from profiles.
  beside_plan = 1;
  watcher.OnPlan(PlanOf(3, 25));
  EXPECT_FALSE(Await(watcher, {.steps = 1000, .known = 50, .decodes = true}, kSome));
  beside_plan = 0.5;
  ASSERT_TRUE(Await(watcher, {.steps = 1000, .known = 50, .decodes = true}));
  EXPECT_EQ(made_with, 1);
}

TEST_F(PlanWatcherTest, WhatDoesNotPayAnyMoreIsNoChange) {
  PlanWatcher watcher(Options(), PlanOf(1, 30));
  mbit_ = 20;
  ASSERT_TRUE(Becomes(watcher, [&] { return searches_ > 0; }));
  EXPECT_FALSE(Await(watcher, {.steps = 10, .known = 50, .decodes = true}, kSome)) << "100 ms saved by a pause of 150";
  EXPECT_EQ(searches_, 1) << "confirmed for these links";
}

TEST_F(PlanWatcherTest, WhatWasFoundForTokensWaitsForThem) {
  PlanWatcher watcher(Options(), PlanOf(1, 30));
  mbit_ = 20;
  ASSERT_TRUE(Becomes(watcher, [&] { return searches_ == 1; }));
  EXPECT_FALSE(Await(watcher, {.steps = 1000, .known = 50, .decodes = false}, kSome));
  EXPECT_TRUE(Await(watcher, {.steps = 1000, .known = 50, .decodes = true}));
  EXPECT_EQ(searches_, 1);
}

TEST_F(PlanWatcherTest, WhatHasNoRoomForTheKvThatThereIsByNowIsSearchedForAgain) {
  most_pages_ = 4;
  PlanWatcher watcher(Options(), PlanOf(1, 30));
  mbit_ = 20;
  EXPECT_FALSE(Await(watcher, {.steps = 1000, .known = 50, .pages = 4, .decodes = true}, 2 * kSome)) << "a page may be begun";
  EXPECT_GE(searches_, 2);
  most_pages_ = 5;
  EXPECT_TRUE(Await(watcher, {.steps = 1000, .known = 50, .pages = 4, .decodes = true}));
}

TEST_F(PlanWatcherTest, WhereNothingFitsThatIsSaidOnce) {
  fits_ = false;
  PlanWatcher watcher(Options(), PlanOf(1, 30));
  mbit_ = 20;
  ASSERT_TRUE(Becomes(watcher, [&] { return !said_.empty(); }));
  EXPECT_FALSE(Await(watcher, {.steps = 1000, .known = 1, .decodes = true}, kSome));
  EXPECT_EQ(searches_, 1);
  EXPECT_THAT(said_, HasSubstr("nothing fits"));
}

TEST_F(PlanWatcherTest, APlanInstalledMeanwhileMakesWhatWasFoundWorthless) {
  PlanWatcher watcher(Options(), PlanOf(1, 30));
  mbit_ = 20;
  ASSERT_TRUE(Becomes(watcher, [&] { return searches_ > 0; }));
  watcher.OnPlan(PlanOf(7, 30));  // of a recovery, with those links in mind
  EXPECT_FALSE(Await(watcher, {.steps = 1000, .known = 1, .decodes = true}, kSome));
}

TEST_F(PlanWatcherTest, ASearchThatNobodyWaitsForIsCancelled) {
  PlanWatcher::Options options = Options();
  options.look = absl::Milliseconds(5), options.now = absl::Now;  // its own thread looks
  absl::Mutex mutex;
  int begun = 0, cancelled = 0;
  const auto count = [&](int& of) {
    absl::MutexLock lock(&mutex);
    ++of;
  };
  const auto await = [&](const int& of, int wanted) {
    const auto reached = [&] { return of >= wanted; };
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(&reached));
  };
  options.search = [&](const PlanWatcher::Search& search) -> absl::StatusOr<PlanWatcher::Candidate> {
    count(begun);
    while (!search.cancelled) std::this_thread::yield();
    count(cancelled);
    return PlanWatcher::Candidate{.plan = PlanOf(0, 1), .ms_per_step = 1, .current_ms = 30};
  };
  mbit_ = 20;
  {
    PlanWatcher watcher(options, PlanOf(1, 30));
    await(begun, 1);
    watcher.OnPlan(PlanOf(2, 30));  // of a recovery
    await(cancelled, 1);
    EXPECT_FALSE(watcher.Next({.steps = 1000000, .known = 1, .decodes = true})) << "it was found for another plan";
    mbit_ = 100;
    await(begun, 2);
  }
  EXPECT_EQ(cancelled, 2);
}

}  // namespace
}  // namespace lime
