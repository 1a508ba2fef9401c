// Experts of every layer divided over the disks of several devices: shares, expected times, and
// plans.

#include "planner/problem/unit_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/batches.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/plan_blocks.h"
#include "planner/sim/simulator.h"
#include "planner/unit_places.h"
#include "tests/planner/small_experts.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- Expected times

TEST(UnitSharesTest, OneDeviceIsExpectedToTakeItsMeanTime) {
  // Two chosen units, each missing with a probability of one half, 10 ms to read: 0, 10 or 20 ms.
  EXPECT_NEAR(ExpectedLongestMs(std::vector<UnitTime>{{.unit_ms = 10, .miss_share = 0.5}}, 2), 10, 1e-9);
  // Behind the reads, what was read is computed. Beside none, all is: 3 ms.
  EXPECT_NEAR(ExpectedLongestMs(std::vector<UnitTime>{{.compute_ms = 3, .late_ms = 1, .unit_ms = 10, .miss_share = 0.5}}, 2),
              0.25 * 3 + 0.5 * 11 + 0.25 * 21, 1e-9);
  EXPECT_NEAR(ExpectedLongestMs(std::vector<UnitTime>{{.fixed_ms = 2, .compute_ms = 3, .unit_ms = 10}}, 8), 5, 1e-9) << "no misses";
}

TEST(UnitSharesTest, TheSlowestOfSeveralDevicesIsWaitedFor) {
  // One chosen unit, each device misses it with a probability of one half: none 1/4, any 3/4.
  const UnitTime half{.unit_ms = 8, .miss_share = 0.5};
  EXPECT_NEAR(ExpectedLongestMs(std::vector<UnitTime>{half, half}, 1), 6, 1e-9);
  // Two chosen: of both devices 0, 1 or 2 misses with 1/4, 1/2, 1/4. The larger one: 1/16, 8/16,
  // 7/16.
  EXPECT_NEAR(ExpectedLongestMs(std::vector<UnitTime>{half, half}, 2), 8 * (8.0 / 16 + 2 * 7.0 / 16), 1e-9);
  // A device that is always slower hides the other one.
  EXPECT_NEAR(ExpectedLongestMs(std::vector<UnitTime>{{.compute_ms = 100}, half}, 2), 100, 1e-9);
}

// Two disks, each of which misses one of four chosen units in a third of the layers.
TEST(UnitSharesTest, ReadAheadTakesTheTimeInWhichADiskWouldBeIdle) {
  const UnitTime disk{.compute_ms = 0.1, .unit_ms = 5, .miss_share = 0.1, .absent_share = 0.25};
  const std::vector<UnitTime> two = {disk, disk};
  const double none = ExpectedLongestMs(two, 4);
  EXPECT_NEAR(ExpectedLongestMs(two, 4, {.places = 0, .rest_ms = 100}), none, 0.02 * none) << "drawn, not computed";
  const double some = ExpectedLongestMs(two, 4, {.places = 2, .rest_ms = 0.5}),
               all = ExpectedLongestMs(two, 4, {.places = 8, .rest_ms = 1e3});
  EXPECT_LT(some, 0.9 * none);
  EXPECT_LT(all, some);
  // With time for all guesses, only misses that were not guessed are read.
  const UnitTime unguessed{.compute_ms = 0.1, .unit_ms = 5, .miss_share = 0.1 * (1 - kGuessedShare)};
  EXPECT_NEAR(all, ExpectedLongestMs(std::vector{unguessed, unguessed}, 4), 0.05 * all);
  EXPECT_GT(some + 0.5, 4 * 0.1 * 5) << "a disk reads what it has to";
  EXPECT_EQ(some, ExpectedLongestMs(two, 4, {.places = 2, .rest_ms = 0.5})) << "the same draws";
}

// Their probabilities multiply to numbers that are too small for a double.
TEST(UnitSharesTest, TheSlowestOfAThousandDevicesIsFound) {
  std::vector<UnitTime> devices;
  for (int d = 1; d <= 1000; ++d) devices.push_back({.unit_ms = 5, .miss_share = 0.001 * d});
  EXPECT_NEAR(ExpectedLongestMs(devices, 64), 64 * 5, 1e-6) << "the last one misses all";
}

// ---- Shares

constexpr Bytes kUnit = 1'000'000;

UnitHolder Holder(double mb_per_ms, int64_t places_of_a_layer, int64_t layers = 2) {
  return {.mb_per_ms = mb_per_ms, .place_bytes = places_of_a_layer * layers * kUnit};
}

absl::StatusOr<std::vector<UnitShare>> Balanced(const std::vector<UnitHolder>& devices) {
  return BalancedShares(devices, {.count = 64, .per_token = 4}, /*layers=*/2, kUnit, {});
}

TEST(UnitSharesTest, EqualDevicesGetEqualShares) {
  const auto shares = Balanced({Holder(2, 10), Holder(2, 10)});
  ASSERT_TRUE(shares.ok()) << shares.status();
  EXPECT_THAT(*shares, ElementsAre(UnitShare{32, 10}, UnitShare{32, 10}));
}

TEST(UnitSharesTest, ADiskThatIsThreeTimesAsFastReadsThreeTimesAsMuch) {
  const auto shares = Balanced({Holder(1, 4), Holder(3, 12)});
  ASSERT_TRUE(shares.ok()) << shares.status();
  EXPECT_THAT(*shares, ElementsAre(UnitShare{16, 4}, UnitShare{48, 12})) << "each has places for a quarter of its units";
}

TEST(UnitSharesTest, MoreMemoryIsWorthMoreUnits) {
  const auto shares = Balanced({Holder(1, 4), Holder(1, 32)});
  ASSERT_TRUE(shares.ok()) << shares.status();
  EXPECT_LT((*shares)[0].units, (*shares)[1].units);
  EXPECT_EQ((*shares)[0].units + (*shares)[1].units, 64);
}

TEST(UnitSharesTest, ADeviceWithoutADiskGetsNoneAndTooLittleMemoryIsAnError) {
  const auto shares = Balanced({Holder(1, 8), Holder(0, 64), Holder(1, 8)});
  ASSERT_TRUE(shares.ok()) << shares.status();
  EXPECT_THAT(*shares, ElementsAre(UnitShare{32, 8}, UnitShare{}, UnitShare{32, 8}));
  EXPECT_THAT(std::string(Balanced({Holder(1, 8), Holder(1, 3)}).status().message()), HasSubstr("memory for 3"));
  EXPECT_THAT(std::string(Balanced({Holder(1, 8)}).status().message()), HasSubstr("over the disks of 1 devices"));
}

// ---- Plans

class DividedPlanTest : public ::testing::Test {
 protected:
  static PlanRequest Request(std::vector<UnitShare> shares) {
    return {.context = 200,
            .batches = {1},
            .part_bytes = kMiB,
            .prompt_tokens = 100,
            .chunks = {64},
            .default_link = {.bytes_per_second = 125e6, .latency_ms = 0.1},
            .unit_places = 4,
            .unit_shares = std::move(shares)};
  }

  // The first half of the layers on the first device, the rest on the second one.
  absl::StatusOr<Plan> PlanWith(std::vector<UnitShare> shares, int32_t ahead_places = 0) const {
    PlanRequest request = Request(std::move(shares));
    request.ahead_places = ahead_places;
    LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec_, devices_, request));
    const int32_t end = problem.head.NumParts(), half = PartsOf(problem.head, {BlockKind::kAttention, 2}).first;
    PlanChoice choice{.stages = {.stages = {{0, 0, half}, {1, half, end}}}, .batch = 1};
    choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(choice.stages);
    return MakePlan(problem, choice);
  }

  const ModelSpec spec_ = SmallExpertModel();
  std::vector<ClusterDevice> devices_ = {Board("a", 200 * kMiB), Board("b", 200 * kMiB), Board("c", 200 * kMiB)};
};

TEST_F(DividedPlanTest, EveryDeviceHasItsShareOfEveryLayer) {
  const auto plan = PlanWith({{8, 3}, {5, 2}, {3, 1}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->Validate(spec_), absl::OkStatus());
  for (int32_t layer = 0; layer < 4; ++layer) {
    const auto [begin, end] = PartsOf(*plan, {BlockKind::kExperts, layer});
    ASSERT_EQ(end - begin, 4) << "the router and three shares";
    const int32_t owner = layer < 2 ? 0 : 1, other = 1 - owner;
    EXPECT_EQ(DeviceOf(*plan, begin + 1), owner);
    EXPECT_EQ(plan->parts[begin + 1].host, -1);
    EXPECT_EQ(plan->parts[begin + 2].host, other);
    EXPECT_EQ(plan->parts[begin + 3].host, 2);
    EXPECT_EQ(std::ssize(UnitsIn(plan->parts[begin + 1].rows)), owner == 0 ? 8 : 5);
    EXPECT_EQ(plan->parts[begin + 1].places, owner == 0 ? 3 : 2);
    EXPECT_EQ(plan->parts[begin + 3].places, 1);
    EXPECT_EQ(plan->parts[begin + 3].rows.front().expert, 13);
    EXPECT_EQ(plan->parts[begin + 3].pinned_bytes, 2 * 1024) << "the norm";
  }
  EXPECT_EQ(PartsOn(*plan, 2).size(), 4u);
  EXPECT_EQ(BlocksOn(*plan, 2).size(), 4u);
  EXPECT_TRUE(HostsUnitsOf(*plan, 2, 0) && HostsUnitsOf(*plan, 0, 1) && HostsUnitsOf(*plan, 1, 0));
  EXPECT_FALSE(HostsUnitsOf(*plan, 0, 2));
  const PlanMemory& memory = plan->devices[2].memory;
  EXPECT_EQ(memory.weights, 4 * (plan->parts[static_cast<size_t>(PartsOn(*plan, 2)[0])].unit_bytes + 2 * 1024));
  EXPECT_EQ(memory.total(), plan->devices[2].budget);
  EXPECT_EQ(UnitUseOf(*plan).units, 16);
  EXPECT_EQ(UnitUseOf(*plan).places, 6);
}

TEST_F(DividedPlanTest, ItRunsAsPredicted) {
  for (const auto& shares : std::vector<std::vector<UnitShare>>{
           {{8, 3}, {5, 2}, {3, 1}}, {{8, 8}, {8, 8}, {0, 0}}, {{1, 1}, {1, 1}, {14, 2}}, {{10, 2}, {2, 2}, {4, 4}}}) {
    const auto plan = PlanWith(shares);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto decode = SimulateDecode(*plan), prefill = SimulatePrefill(*plan);
    ASSERT_TRUE(decode.ok() && prefill.ok()) << decode.status() << prefill.status();
    EXPECT_EQ(decode->MsPerStep(), plan->predicted.ms_per_step);
    EXPECT_EQ(prefill->step_ends_ms.back(), plan->predicted.ttft_ms);
  }
}

TEST_F(DividedPlanTest, AllLayersButTheFirstGainByReadAhead) {
  const auto none = PlanWith({{8, 4}, {8, 4}, {0, 0}}), ahead = PlanWith({{8, 4}, {8, 4}, {0, 0}}, 1);
  ASSERT_TRUE(none.ok() && ahead.ok()) << none.status() << ahead.status();
  EXPECT_EQ(ahead->Validate(spec_), absl::OkStatus());
  for (int32_t layer = 0; layer < 4; ++layer) {
    const int own = PartsOf(*ahead, {BlockKind::kExperts, layer}).first + 1;
    EXPECT_EQ(ahead->parts[own].ahead_places, 1);
    EXPECT_EQ(ahead->parts[own + 1].ahead_places, 1) << "the host, too";
    const double with = ahead->parts[own + 1].decode_ms, without = none->parts[own + 1].decode_ms;
    EXPECT_TRUE(layer == 0 ? with == without : with < without) << layer << ": " << with << " " << without;
    EXPECT_EQ(ahead->parts[own + 1].prefill_ms, none->parts[own + 1].prefill_ms);
  }
  const auto simulated = SimulateDecode(*ahead);
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  EXPECT_EQ(simulated->MsPerStep(), ahead->predicted.ms_per_step);
}

TEST_F(DividedPlanTest, ItsTimeOfALayerIsTheSlowestDevicesWithTheMessages) {
  const auto plan = PlanWith({{8, 8}, {8, 8}, {0, 0}});  // all in memory
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int own = PartsOf(*plan, {BlockKind::kExperts, 0}).first + 1;
  const PlanPart &first = plan->parts[own], &second = plan->parts[own + 1];
  EXPECT_EQ(first.demand_ms, 0);
  EXPECT_NEAR(first.chosen_units, 1, 1e-9) << "one of the two";
  // The input of one row and two unit numbers, and one result; two ways.
  const double messages_ms = (1024 * 2 + 2 * 4 + 1024 * 4) / 125e3 + 0.2;
  EXPECT_NEAR(second.decode_ms, first.decode_ms + messages_ms, 1e-9);
}

TEST_F(DividedPlanTest, ItsJsonComesBackTheSame) {
  const auto plan = PlanWith({{8, 3}, {5, 2}, {3, 1}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto parsed = ParsePlan(ToJsonText(*plan), "plan");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, *plan);
}

TEST_F(DividedPlanTest, WhatDoesNotFitTogetherIsRefused) {
  const auto plan = PlanWith({{8, 3}, {5, 2}, {3, 1}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int own = PartsOf(*plan, {BlockKind::kExperts, 0}).first + 1;
  const auto refusal = [&](auto change) {
    Plan changed = *plan;
    change(changed);
    return std::string(changed.Validate().message());
  };
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[own + 1].host = 3; }), HasSubstr("host is 3, but the plan has devices 0 to 2"));
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[own - 1].host = 1; }), HasSubstr("host is 1, but only experts on demand can have a host"));
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[own].host = 1; }), HasSubstr("has no units of experts 0 before it"));
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[own + 1].host = 0; }), HasSubstr("is the device of its stage"));
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[own + 2].host = 1; }), HasSubstr("has other units of experts 0"));
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[own + 1].host = -1; }), HasSubstr("is not the last part of experts 0 on its device"));
  EXPECT_THAT(refusal([&](Plan& p) { p.devices[1].numerics_id = "other"; }), HasSubstr("kernels of order \"other\""));
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[own + 1].ahead_places = 2; }), HasSubstr("ahead_places")) << "into all places";
  EXPECT_THAT(refusal([&](Plan& p) { std::swap(p.parts[own + 1].rows, p.parts[own + 2].rows); }), HasSubstr("out of order"));
  EXPECT_THAT(refusal([&](Plan& p) { p.parts[own + 1].pinned_bytes = 0; }), HasSubstr("memory.weights"));
}

TEST_F(DividedPlanTest, SharesThatAreNotAllExpertsAreRefused) {
  const auto refusal = [&](std::vector<UnitShare> shares) {
    return std::string(MakePlanProblem(spec_, devices_, Request(std::move(shares))).status().message());
  };
  EXPECT_THAT(refusal({{8, 3}, {5, 2}}), HasSubstr("2 shares of the experts of 3 devices"));
  EXPECT_THAT(refusal({{8, 3}, {5, 2}, {2, 1}}), HasSubstr("15 experts, but a layer has 16"));
  EXPECT_THAT(refusal({{8, 9}, {5, 2}, {3, 1}}), HasSubstr("places of a share"));
  EXPECT_EQ(PlanWith({{8, 8}, {0, 0}, {8, 8}}).status().code(), absl::StatusCode::kResourceExhausted) << "a stage without experts";
}

TEST_F(DividedPlanTest, SharesLikeThoseOfAPlanFitItsMemory) {
  const auto whole = PlanWith({});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto shares = SharesLike(spec_, *whole, {.idle_bytes = {20 * kMiB, 20 * kMiB, 20 * kMiB}, .message_bytes = kMiB});
  ASSERT_TRUE(shares.ok()) << shares.status();
  int64_t units = 0;
  for (const UnitShare& share : *shares) {
    units += share.units;
    EXPECT_EQ(share.places, share.units) << "there is room for all";
  }
  EXPECT_EQ(units, 16);
  const auto divided = PlanWith(*shares);
  ASSERT_TRUE(divided.ok()) << divided.status();
  EXPECT_LT(TimeMs(*divided), TimeMs(*whole)) << "with 4 of 16 in memory it reads";
}

}  // namespace
}  // namespace lime
