#include "daemon/logic/places_to_shed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "daemon/logic/residency_logic.h"
#include "daemon/logic/stage_programs.h"
#include "planner/plan/plan_blocks.h"
#include "planner/problem/plan_problem.h"
#include "tests/planner/small_experts.h"

namespace lime {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kTokenUnits = 2;  // of SmallExpertModel
constexpr int32_t kLayersWithExperts = 4;

// All in memory of one device, except experts: each layer has these places.
Plan PlanWithPlaces(const ModelSpec& spec, int64_t places) {
  const ClusterDevice device = Board("local", 4 * kGiB, 10e9, 1e9);
  const PlanRequest request{.context = 64, .batches = {1}, .part_bytes = kMiB, .unit_places = places};
  const auto problem = MakePlanProblem(spec, {&device, 1}, request);
  EXPECT_TRUE(problem.ok()) << problem.status();
  if (!problem.ok()) return {};
  const PlanChoice choice{.stages = {.stages = {{0, 0, problem->instance.NumBlocks()}}}, .batch = 1};
  auto plan = MakePlan(*problem, choice);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan{};
}

std::vector<int32_t> CountsOf(const std::vector<PartPlaces>& parts) {
  std::vector<int32_t> counts;
  for (const PartPlaces& part : parts) counts.push_back(part.places);
  return counts;
}

TEST(PlacesToShedTest, ThePartWithTheMostPlacesLosesTheNextAndTheHighestLayerFirst) {
  const ModelSpec spec = SmallExpertModel();
  Plan plan = PlanWithPlaces(spec, 5);
  int first = 0;
  while (!plan.parts[static_cast<size_t>(first)].on_demand()) ++first;
  plan.parts[static_cast<size_t>(first)].places = 7;
  const PlacesToShed shed(plan, 0, kTokenUnits);
  const Bytes unit = plan.parts[static_cast<size_t>(first)].unit_bytes;
  EXPECT_EQ(shed.largest(), unit);
  EXPECT_EQ(shed.Choose(0).front().part, first);
  EXPECT_THAT(CountsOf(shed.Choose(0)), ElementsAre(7, 5, 5, 5));
  EXPECT_THAT(CountsOf(shed.Choose(1)), ElementsAre(6, 5, 5, 5));
  EXPECT_THAT(CountsOf(shed.Choose(unit)), ElementsAre(6, 5, 5, 5));
  EXPECT_THAT(CountsOf(shed.Choose(unit + 1)), ElementsAre(5, 5, 5, 5));
  EXPECT_THAT(CountsOf(shed.Choose(3 * unit)), ElementsAre(5, 5, 5, 4));
  EXPECT_THAT(CountsOf(shed.Choose(4 * unit)), ElementsAre(5, 5, 4, 4));
  for (Bytes bytes = 0; bytes <= shed.most(); bytes += unit / 3) EXPECT_GE(shed.Gone(shed.Choose(bytes)), bytes);
}

TEST(PlacesToShedTest, EachPartKeepsTheUnitsOfATokenAndTheRingOfASweep) {
  const ModelSpec spec = SmallExpertModel();
  const Plan plan = PlanWithPlaces(spec, 5);
  for (const auto& [token_units, least] : {std::pair(1, 2), std::pair(2, 2), std::pair(4, 4), std::pair(9, 5)}) {
    const PlacesToShed shed(plan, 0, token_units);
    EXPECT_THAT(CountsOf(shed.Choose(INT64_MAX)), ElementsAre(least, least, least, least));
    EXPECT_EQ(shed.most(), kLayersWithExperts * (5 - least) * shed.largest());
    EXPECT_EQ(shed.Gone(shed.Choose(INT64_MAX)), shed.most());
  }
}

TEST(PlacesToShedTest, RowsOfNeuronsGoManyAtATimeAndSomeStay) {
  Plan plan{.reads_once = true};
  plan.devices.resize(1);
  for (const int32_t layer : {0, 1}) {
    plan.parts.push_back({.block = {BlockKind::kMlp, layer}, .rows = {{TensorRole::kUp, 0, 1000}}});
    plan.parts.push_back({.block = {BlockKind::kMlp, layer},
                          .rows = {{TensorRole::kDown, 0, 64}},
                          .unit_bytes = 4096,
                          .places = layer == 0 ? 640 : 50,
                          .window_masks = 5});
  }
  plan.stages = {{.device = 0, .lo = 0, .hi = 4}};
  const PlacesToShed shed(plan, 0, /*token_units=*/0);
  EXPECT_EQ(shed.most(), (640 - 64) * 4096);
  EXPECT_EQ(shed.largest(), 20 * 4096);
  EXPECT_THAT(CountsOf(shed.Choose(0)), ElementsAre(640, 50));
  EXPECT_THAT(CountsOf(shed.Choose(1)), ElementsAre(620, 50));
  EXPECT_THAT(CountsOf(shed.Choose(21 * 4096)), ElementsAre(600, 50));
  EXPECT_THAT(CountsOf(shed.Choose(INT64_MAX)), ElementsAre(64, 50)) << "a part with few rows keeps all";
  for (Bytes bytes = 0; bytes <= shed.most(); bytes += 5000) EXPECT_GE(shed.Gone(shed.Choose(bytes)), bytes);
}

TEST(PlacesToShedTest, AFixedPlanShedsNoPlace) {
  const ModelSpec spec = SmallExpertModel();
  Plan plan = PlanWithPlaces(spec, 5);
  plan.reads_once = false;
  EXPECT_EQ(PlacesToShed(plan, 0, kTokenUnits).most(), 0);
  EXPECT_TRUE(PlacesToShed(plan, 0, kTokenUnits).Choose(INT64_MAX).empty());
}

// A stage whose residency follows the memory, without a driver: nothing computes.
class PlacesUnderPressureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto programs = CompileAll(plan_, 0);
    ASSERT_TRUE(programs.ok()) << programs.status();
    WeightsToShed::Options shedding{.device = 0, .embedding = false, .may_stream = std::vector<bool>(plan_.parts.size(), true)};
    residency_.emplace(plan_, *std::move(programs), book_,
                       ResidencyLogic::Options{.device = 0,
                                               .layers = kLayersWithExperts,
                                               .ring_comes = plan_.devices[0].memory.ring == 0,
                                               .shedding = std::move(shedding),
                                               .token_units = kTokenUnits});
    const StageInbox::Shape shape{.vocab_size = spec_.config.vocab_size, .row_bytes = 8, .microbatches = 1};
    stage_.emplace(plan_, 0, shape, residency_->programs(), book_);
    residency_->Start(*stage_);
    stage_->Start(of_stage_);
  }

  // Returns the actions that follow.
  ResidencyLogic::Actions Aim(Bytes resident) {
    residency_->SetTarget(resident);
    ResidencyLogic::Actions actions;
    residency_->TryChange(actions);
    return actions;
  }

  // Carries SetPlaces out. Returns the actions that follow.
  ResidencyLogic::Actions Set(const ResidencyLogic::Action& action) {
    for (const PartPlaces& to : std::get<ResidencyLogic::SetPlaces>(action).places) {
      const int32_t before = stage_->NumPlaces(to.part);
      EXPECT_EQ(std::ssize(stage_->SetPlaces(to.part, to.places)), std::abs(before - to.places));
      EXPECT_EQ(stage_->NumPlaces(to.part), to.places);
    }
    ResidencyLogic::Actions actions;
    residency_->OnPlacesSet(actions);
    return actions;
  }

  static Bytes ResidentIn(const ResidencyLogic::Actions& actions) {
    EXPECT_EQ(actions.size(), 1u);
    return std::get<ResidencyLogic::Resident>(actions.at(0)).bytes;
  }

  const ModelSpec spec_ = SmallExpertModel();
  const Plan plan_ = PlanWithPlaces(spec_, 5);
  const Bytes places_ = PlacesToShed(plan_, 0, kTokenUnits).most();
  KvBook book_{plan_, {.device = 0, .layers = kLayersWithExperts}};
  std::optional<ResidencyLogic> residency_;
  std::optional<StageLogic> stage_;
  StageLogic::Actions of_stage_;
};

TEST_F(PlacesUnderPressureTest, PlacesGoBeforeRowsAndComeBack) {
  const Bytes most = residency_->most();
  ASSERT_GT(most, places_) << "rows may go, too";
  EXPECT_TRUE(Aim(most).empty());
  const ResidencyLogic::Actions some = Aim(most - places_ / 2);
  ASSERT_EQ(some.size(), 1u) << "no Program changes";
  EXPECT_EQ(residency_->shed(), 0) << "not yet";
  const Bytes resident = ResidentIn(Set(some[0]));
  EXPECT_EQ(residency_->shed(), most - resident);
  EXPECT_LE(resident, most - places_ / 2);
  EXPECT_GT(resident, most - places_);
  EXPECT_TRUE(Aim(resident).empty());
  const ResidencyLogic::Actions back = Aim(most);
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(ResidentIn(Set(back[0])), most);
  EXPECT_EQ(residency_->shed(), 0);
}

TEST_F(PlacesUnderPressureTest, RowsFollowOnceAllPlacesThatMayGoAreGone) {
  const Bytes most = residency_->most();
  EXPECT_EQ(Aim(most - places_).size(), 1u);
  const ResidencyLogic::Actions more = Aim(most - places_ - 1);
  ASSERT_EQ(more.size(), 1u) << "rows; the places are under way";
  EXPECT_GT(std::get<ResidencyLogic::Prepare>(more[0]).to.streamed.size(), 0u);
}

TEST_F(PlacesUnderPressureTest, ATargetThatChangesMeanwhileIsFollowedNext) {
  const Bytes most = residency_->most();
  const ResidencyLogic::Actions fewer = Aim(most - places_);
  ASSERT_EQ(fewer.size(), 1u);
  EXPECT_TRUE(Aim(most).empty()) << "the places are under way";
  const ResidencyLogic::Actions next = Set(fewer[0]);
  ASSERT_EQ(next.size(), 2u);
  EXPECT_EQ(std::get<ResidencyLogic::Resident>(next[0]).bytes, most - places_);
  EXPECT_EQ(ResidentIn(Set(next[1])), most);
}

TEST_F(PlacesUnderPressureTest, AStageThatHasStoppedKeepsItsPlaces) {
  residency_->Stop();
  EXPECT_TRUE(Aim(0).empty());
}

}  // namespace
}  // namespace lime
