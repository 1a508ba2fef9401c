#include "planner/unit_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/one_device.h"
#include "tests/planner/small_experts.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec ModelOf(int64_t count, int64_t per_token) {
  ModelSpec spec;
  spec.config.experts = {.count = count, .per_token = per_token};
  return spec;
}

// A plan that takes `ms`, on one device, with room for `more` places.
Plan PlanWith(int64_t places, double ms, int64_t more = 0) {
  Plan plan;
  PlanPart part{.block = {BlockKind::kExperts, 0}, .bytes = 1000, .unit_bytes = 10, .places = places};
  plan.parts = {part};
  plan.stages = {{0, 0, 1}};
  plan.devices = {{.name = "a", .memory = {.margin = more * 10 + 9}, .disk_mb_per_ms = 1}};
  plan.predicted.ms_per_step = ms;
  return plan;
}

TEST(UnitPlacesTest, TakesAllPlacesForWhichThereIsRoom) {
  std::vector<int64_t> asked;
  const auto plan = ChooseUnitPlaces(ModelOf(128, 8), {.plan = [&](int64_t places) -> absl::StatusOr<Plan> {
                                       asked.push_back(places);
                                       if (places > 48) return absl::ResourceExhaustedError("full");
                                       return PlanWith(places, 1000.0 - static_cast<double>(places), 48 - places);
                                     }});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->parts[0].places, 48);
  EXPECT_EQ(asked[0], 8) << "the fewest";
  EXPECT_EQ(asked[1], 48) << "what the first plan has room for";
  EXPECT_LE(asked.size(), 6u);
}

TEST(UnitPlacesTest, FindsAboutTheBestNumberIfMorePlacesPushOtherPartsOut) {
  for (const int64_t best : {8, 20, 50, 99, 128}) {
    std::vector<int64_t> asked;
    int64_t newest = 0, kept = 0;
    const UnitPlacesSearch search{.plan = [&](int64_t places) -> absl::StatusOr<Plan> {
                                    asked.push_back(newest = places);
                                    return PlanWith(places, 10 + std::abs(static_cast<double>(places - best)));
                                  },
                                  .best = [&] { kept = newest; },
                                  .most_plans = 12};
    const auto plan = ChooseUnitPlaces(ModelOf(128, 8), search);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_NEAR(static_cast<double>(plan->parts[0].places), static_cast<double>(best), 0.25 * static_cast<double>(best) + 1) << best;
    EXPECT_EQ(kept, plan->parts[0].places) << "the caller knows which plan was the best";
    EXPECT_EQ(std::set<int64_t>(asked.begin(), asked.end()).size(), asked.size()) << "no number twice";
  }
}

TEST(UnitPlacesTest, WithoutRoomForTheExpertsOfARowTheyPassThroughFewerPlaces) {
  for (const int64_t room : {2, 3, 5, 7}) {
    std::vector<int64_t> asked;
    const auto plan = ChooseUnitPlaces(ModelOf(128, 8), {.plan = [&](int64_t places) -> absl::StatusOr<Plan> {
                                         asked.push_back(places);
                                         if (places > room) return absl::ResourceExhaustedError("full");
                                         return PlanWith(places, 1000.0 - static_cast<double>(places), room - places);
                                       }});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->parts[0].places, room);
    EXPECT_EQ(asked[0], 8) << "the experts of a row, if they fit";
    EXPECT_EQ(asked[1], 2);
    EXPECT_LE(asked.size(), 6u);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(
      ChooseUnitPlaces(ModelOf(128, 8), {.plan = [](int64_t) { return absl::ResourceExhaustedError("full"); }}).status()));
}

TEST(UnitPlacesTest, NeverPlansMoreOftenThanAllowed) {
  int plans = 0;
  bool ends = false;
  const UnitPlacesSearch search{.plan = [&](int64_t places) -> absl::StatusOr<Plan> {
                                  ++plans;
                                  return PlanWith(places, 1000 - static_cast<double>(places));
                                },
                                .ends = [&] { return ends; },
                                .most_plans = 3};
  EXPECT_TRUE(ChooseUnitPlaces(ModelOf(1024, 2), search).ok());
  EXPECT_EQ(plans, 3);
  plans = 0, ends = true;
  EXPECT_TRUE(ChooseUnitPlaces(ModelOf(1024, 2), search).ok());
  EXPECT_EQ(plans, 1);
  plans = 0, ends = false;
  EXPECT_TRUE(ChooseUnitPlaces(ModelOf(4, 4), search).ok());
  EXPECT_EQ(plans, 1) << "the fewest are all";
}

TEST(UnitPlacesTest, ErrorsOtherThanLackOfMemoryAreNotHidden) {
  const auto with = [](int64_t wrong, absl::Status status) {
    return ChooseUnitPlaces(ModelOf(64, 4), {.plan = [=](int64_t places) -> absl::StatusOr<Plan> {
                              if (places >= wrong) return status;
                              return PlanWith(places, 5);
                            }})
        .status();
  };
  EXPECT_THAT(std::string(with(2, absl::ResourceExhaustedError("no room")).message()), HasSubstr("no room"));
  EXPECT_TRUE(with(4, absl::ResourceExhaustedError("no room")).ok());
  EXPECT_TRUE(with(5, absl::ResourceExhaustedError("no room")).ok());
  EXPECT_EQ(with(5, absl::CancelledError("stopped")).code(), absl::StatusCode::kCancelled);
}

TEST(UnitPlacesTest, ADiskThatReadsAllTheTimeBoundsAStep) {
  Plan plan = PlanWith(4, /*ms=*/2);
  plan.parts[0].chosen_units = 8, plan.parts[0].hit_share = 0.5, plan.parts[0].unit_bytes = 1'000'000;
  plan.parts[0].bytes = 16'000'000;
  EXPECT_EQ(DemandBytes(plan.parts[0]), 4e6);
  EXPECT_EQ(TimeMs(plan), 4) << "four units of 1 MB at 1 MB/ms";
  plan.devices[0].disk_mb_per_ms = 10;
  EXPECT_EQ(TimeMs(plan), 2);
  plan.parts.push_back({.block = {BlockKind::kHead, 0}, .bytes = 36'000'000, .streamed = true});
  plan.stages[0].hi = 2;
  EXPECT_EQ(TimeMs(plan), 4) << "with what streams";
}

TEST(UnitPlacesTest, TheUseOfAPlanIsASentence) {
  Plan plan = PlanWith(2, 1);
  EXPECT_EQ(UnitUse{}.Text(1), "");
  plan.parts[0].rows = {{TensorRole::kGate, 0, 8, 0}, {TensorRole::kDown, 0, 8, 0}, {TensorRole::kGate, 0, 8, 1},
                        {TensorRole::kDown, 0, 8, 1}, {TensorRole::kGate, 0, 8, 2}, {TensorRole::kDown, 0, 8, 2}};
  plan.parts[0].chosen_units = 2, plan.parts[0].hit_share = 0.75, plan.parts[0].unit_bytes = 4 * kMiB;
  EXPECT_EQ(UnitUseOf(plan).Text(1), "experts: 2 of 3 kept, 75 % expected in memory, 2.00 MiB read a token");
  EXPECT_EQ(UnitUseOf(plan).Text(2), "experts: 2 of 3 kept, 75 % expected in memory, 1.00 MiB read a token");
  EXPECT_EQ(UnitUseOf(plan).Text(1, 0.777), "experts: 2 of 3 kept, 75 % expected in memory, 78 % measured, 2.00 MiB read a token");
}

}  // namespace
}  // namespace lime
