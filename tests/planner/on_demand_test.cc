// Plans with experts on demand: their parts, memory and times, on one device and on several.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "planner/batches.h"
#include "planner/kv/kv_growth.h"
#include "planner/kv/kv_levels.h"
#include "planner/one_device.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_residency.h"
#include "planner/sim/simulator.h"
#include "planner/unit_places.h"
#include "tests/planner/small_experts.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

PlanRequest RequestWith(int64_t places) {
  return {.context = 200,
          .batches = {1},
          .part_bytes = kMiB,
          .embedding_with_head = true,
          .prompt_tokens = 100,
          .chunks = {64},
          .unit_places = places};
}

PlanProblem ProblemOf(const ModelSpec& spec, Bytes budget, int64_t places, double disk_rate = 1e9) {
  const ClusterDevice device = Board("local", budget, 10e9, disk_rate);
  const auto problem = MakePlanProblem(spec, {&device, 1}, RequestWith(places));
  EXPECT_TRUE(problem.ok()) << problem.status();
  return problem.ok() ? *problem : PlanProblem{};
}

std::vector<PlanPart> PartsOfLayer(const Plan& plan, int32_t layer) {
  const auto [begin, end] = PartsOf(plan, {BlockKind::kExperts, layer});
  return {plan.parts.begin() + begin, plan.parts.begin() + end};
}

Bytes StreamedBeside(const Plan& plan) {
  Bytes bytes = 0;
  for (const PlanPart& part : plan.parts) bytes += part.streamed ? part.bytes : 0;
  return bytes;
}

TEST(OnDemandTest, ABlockWithExpertsIsTheRouterAndOnePartWithAllExperts) {
  const ModelSpec spec = SmallExpertModel();
  const Plan head = ProblemOf(spec, 100 * kMiB, 5).head;
  for (int32_t layer = 0; layer < 4; ++layer) {
    const std::vector<PlanPart> parts = PartsOfLayer(head, layer);
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_FALSE(parts[0].on_demand());
    ASSERT_EQ(parts[0].rows.size(), 1u);
    EXPECT_EQ(parts[0].rows[0].role, TensorRole::kRouter);
    EXPECT_EQ(parts[0].pinned_bytes, 2 * 1024) << "the norm";
    EXPECT_TRUE(parts[1].on_demand());
    EXPECT_EQ(parts[1].places, 5);
    const auto units = UnitsIn(parts[1].rows);
    ASSERT_EQ(units.size(), 16u);
    for (size_t e = 0; e < units.size(); ++e) {
      ASSERT_EQ(units[e].size(), 3u) << "gate, up and down";
      EXPECT_EQ(units[e][0].expert, static_cast<int32_t>(e));
    }
    EXPECT_GE(parts[1].unit_bytes, 3 * 2 * 1024 * kSmallInner);
    EXPECT_LE(parts[1].unit_bytes, 3 * 2 * 1024 * kSmallInner + 40 * kKiB) << "with the slack of direct reads";
    EXPECT_EQ(MemoryOf(parts[1]), 5 * parts[1].unit_bytes);
  }
  const Plan all = ProblemOf(spec, 100 * kMiB, 100).head;
  EXPECT_EQ(PartsOfLayer(all, 0)[1].places, 16) << "no more places than experts";
  for (const PlanPart& part : ProblemOf(spec, 100 * kMiB, 0).head.parts) EXPECT_FALSE(part.on_demand());
}

TEST(OnDemandTest, PlacesAreFixedMemoryAndTheirReadsAreTimeOfThePart) {
  const ModelSpec spec = SmallExpertModel();
  const PlanProblem problem = ProblemOf(spec, 100 * kMiB, 4);
  const auto part = std::ranges::find_if(problem.head.parts, &PlanPart::on_demand) - problem.head.parts.begin();
  const Instance::Block& block = problem.instance.blocks[static_cast<size_t>(part)];
  EXPECT_EQ(block.mb, 0);
  EXPECT_DOUBLE_EQ(block.kv_mb, static_cast<double>(4 * problem.head.parts[static_cast<size_t>(part)].unit_bytes) / 1e6);
  EXPECT_EQ(block.state_mb, block.kv_mb) << "the context does not change it";
  const PartDemand& demand = problem.demand[0].decode.at(1)[0];
  EXPECT_EQ(demand.part, part);
  EXPECT_NEAR(demand.chosen_units, 2, 1e-12);
  EXPECT_NEAR(demand.hit_share, 0.78, 1e-12) << "4 of 16";
  // 0.44 misses of 1.5 MiB at 1 GB/s and 0.1 ms, less what the units in memory hide of them.
  const double unit_ms = static_cast<double>(problem.head.parts[static_cast<size_t>(part)].unit_bytes) / 1e6 + 0.1;
  EXPECT_DOUBLE_EQ(demand.read_ms, 0.44 * unit_ms - 0.44 * 0.78 * demand.compute_ms);
  EXPECT_EQ(problem.instance.devices[0].comp_ms[static_cast<size_t>(part)], demand.compute_ms + demand.read_ms);
  const PartDemand& chunk = problem.demand[0].prefill.at(64)[0];
  EXPECT_NEAR(chunk.chosen_units, 16, 0.01);
  EXPECT_EQ(chunk.hit_share, 0.25);
  EXPECT_GT(chunk.read_ms, 10 * unit_ms);
}

TEST(OnDemandTest, AStepReadsOnlyTheChosenExpertsFromMemory) {
  const ModelSpec spec = SmallExpertModel();
  DeviceProfile profile = BoardProfile(10e9, 1e9);
  profile.flops = 0, profile.block_overhead_ms = 0;
  const BlockSpec& block = spec.block({BlockKind::kExperts, 0});
  const auto bytes = [&](int64_t rows) { return RooflineMs(profile, spec, block.id, rows, 1) * 10e6; };
  const double expert = 3 * 2 * 1024 * kSmallInner;
  EXPECT_NEAR(bytes(1), static_cast<double>(block.bytes) - 14 * expert, 0.01 * expert);
  EXPECT_NEAR(bytes(1000), static_cast<double>(block.bytes), 1);
  EXPECT_GT(bytes(2), 1.5 * bytes(1));
}

TEST(OnDemandTest, APlanIsValidForItsModelAndRunsAsPredicted) {
  const ModelSpec spec = SmallExpertModel();
  for (const Bytes budget : {48 * kMiB, 60 * kMiB, 90 * kMiB}) {
    for (const int64_t places : {2, 4, 8}) {
      SCOPED_TRACE(absl::StrCat(budget, " ", places));
      const PlanProblem problem = ProblemOf(spec, budget, places);
      const auto plan = PlanOneDevice(problem, {.rows = 512 * kKiB, .streaming_margin = 256 * kKiB});
      if (absl::IsResourceExhausted(plan.status()) && places == 8) continue;
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec);
      EXPECT_EQ(plan->devices[0].memory.total(), budget);
      for (const PlanPart& part : plan->parts) EXPECT_FALSE(part.on_demand() && part.streamed);
      const auto decode = SimulateDecode(*plan), prefill = SimulatePrefill(*plan);
      ASSERT_TRUE(decode.ok() && prefill.ok()) << decode.status() << prefill.status();
      EXPECT_EQ(decode->MsPerStep(), plan->predicted.ms_per_step);
      EXPECT_EQ(prefill->step_ends_ms.back(), plan->predicted.ttft_ms);
      EXPECT_GT(PartsOfLayer(*plan, 0)[1].demand_ms, 0);
      EXPECT_DOUBLE_EQ(MsPerStepAt(*plan, 1e9), plan->predicted.ms_per_step);
      EXPECT_GT(MsPerStepAt(*plan, 0.5e9), plan->predicted.ms_per_step) << "a slower disk";
    }
  }
}

TEST(OnDemandTest, WhatSearchesStreamOfAPartOnDemandIsLeftOut) {
  const ModelSpec spec = SmallExpertModel();
  const PlanProblem problem = ProblemOf(spec, 200 * kMiB, 4);
  StagePlan stages{.stages = {{0, 0, problem.head.NumParts()}}, .embedding_by_rows = true};
  PlanChoice choice{.stages = stages};
  choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(stages);
  const auto without = MakePlan(problem, choice);
  for (int32_t p = 0; p < problem.head.NumParts(); ++p) {
    if (problem.head.parts[static_cast<size_t>(p)].on_demand()) choice.stages.streamed.push_back(p);
  }
  choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(choice.stages);
  const auto with = MakePlan(problem, choice);
  ASSERT_TRUE(without.ok() && with.ok()) << without.status() << with.status();
  EXPECT_EQ(*with, *without);
}

TEST(OnDemandTest, ADeviceWithoutADiskGetsNoPartOnDemand) {
  const ModelSpec spec = SmallExpertModel();
  std::vector<ClusterDevice> devices = {Board("disk", 60 * kMiB), Board("none", 90 * kMiB)};
  devices[1].profile.disk.clear();
  const auto problem = MakePlanProblem(spec, devices, RequestWith(4));
  ASSERT_TRUE(problem.ok()) << problem.status();
  const int32_t end = problem->head.NumParts();
  PlanChoice choice{.stages = {.stages = {{1, 0, end}}}};
  choice.first_token = FirstTokenPredictor(*problem->first_token).Predict(choice.stages);
  const auto refused = MakePlan(*problem, choice);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("device \"none\" would load experts 0"));
  const auto best = PlanBatches(Strategy::kLime, problem->instance, {.time_limit_ms = 50, .max_work = 2e4, .exhaustive = false});
  ASSERT_TRUE(best.ok() && best->found.feasible);
  for (const Stage& stage : best->found.plan.stages) {
    for (int p = stage.lo; stage.device == 1 && p < stage.hi; ++p) EXPECT_FALSE(problem->head.parts[static_cast<size_t>(p)].on_demand());
  }
}

TEST(OnDemandTest, APlanNamesThePolicyOfItsNumberOfPlaces) {
  const ModelSpec spec = SmallExpertModel();
  const ClusterDevice device = Board("local", 100 * kMiB);
  const auto policy_with = [&](int64_t places, std::vector<UnitPolicy> policies) {
    PlanRequest request = RequestWith(places);
    request.unit_policies = std::move(policies);
    return PartsOfLayer(MakePlanProblem(spec, {&device, 1}, request)->head, 0)[1].policy;
  };
  using enum UnitPolicy;
  EXPECT_EQ(policy_with(2, {}), kLru);
  EXPECT_EQ(policy_with(2, {kLru, kLfu, kLeastStale}), kLfu);
  EXPECT_EQ(policy_with(3, {kLru, kLfu, kLeastStale}), kLeastStale);
  EXPECT_EQ(policy_with(9, {kLru, kLfu, kLeastStale}), kLeastStale) << "the last one is for more places";
}

TEST(OnDemandTest, ReadAheadTakesAsManyPlacesAsAreAskedForButLeavesOne) {
  const ModelSpec spec = SmallExpertModel();
  const ClusterDevice device = Board("local", 100 * kMiB);
  const auto ahead_with = [&](int64_t places, int32_t ahead) {
    PlanRequest request = RequestWith(places);
    request.ahead_places = ahead;
    return PartsOfLayer(MakePlanProblem(spec, {&device, 1}, request)->head, 0)[1].ahead_places;
  };
  EXPECT_EQ(ahead_with(3, 0), 0);
  EXPECT_EQ(ahead_with(3, 1), 1);
  EXPECT_EQ(ahead_with(3, 9), 2);
  EXPECT_EQ(ahead_with(1, 1), 0);
  PlanRequest request = RequestWith(3);
  request.ahead_places = 65;
  EXPECT_THAT(std::string(MakePlanProblem(spec, {&device, 1}, request).status().message()), HasSubstr("ahead_places"));
}

TEST(OnDemandTest, KvThatGrowsBesideItIsRefusedByName) {
  const ModelSpec spec = SmallExpertModel();
  const ClusterDevice device = Board("local", 100 * kMiB);
  PlanRequest request = RequestWith(4);
  request.kv_tokens = 64;
  const auto refusal = [&] { return std::string(MakePlanProblem(spec, {&device, 1}, request).status().message()); };
  EXPECT_THAT(refusal(), HasSubstr("experts on demand beside KV that grows or is evicted are not supported"));
  request.kv_tokens = 0, request.retained_positions = 64;
  EXPECT_THAT(refusal(), HasSubstr("not supported"));
  request.retained_positions = 0, request.unit_places = -1;
  EXPECT_THAT(refusal(), HasSubstr("unit_places = -1"));
  request.unit_places = 4, request.unit_hits = {2};
  EXPECT_THAT(refusal(), HasSubstr("unit_hits[0] = 2"));
}

TEST(OnDemandTest, ResidencyAndLevelsNeverStreamAPartOnDemand) {
  const ModelSpec spec = SmallExpertModel();
  const auto plan = PlanOneDevice(ProblemOf(spec, 60 * kMiB, 4), {.rows = 512 * kKiB});
  ASSERT_TRUE(plan.ok()) << plan.status();
  Residency residency = ResidencyOf(*plan);
  const auto part = static_cast<int32_t>(std::ranges::find_if(plan->parts, &PlanPart::on_demand) - plan->parts.begin());
  residency.streamed.push_back(part);
  std::ranges::sort(residency.streamed);
  const auto streams = WithResidency(*plan, residency);
  EXPECT_THAT(std::string(streams.status().message()), HasSubstr("loads on demand, so it cannot stream"));
  const KvLevels levels = MakeKvLevels(*plan);
  EXPECT_EQ(levels.levels.size(), 1u);
  EXPECT_EQ(levels.exhausted, "");
  EXPECT_DOUBLE_EQ(levels.levels[0].ms_per_step, plan->predicted.ms_per_step);
  Plan grows = *plan;
  for (PlanPart& each : grows.parts) each.kv_pages /= 2;
  EXPECT_THAT(MakeKvLevels(grows).exhausted, HasSubstr("not supported"));
}

TEST(OnDemandTest, ABlockWithAPartOnDemandIsNeverWhole) {
  const ModelSpec spec = SmallExpertModel();
  const auto plan = PlanOneDevice(ProblemOf(spec, 200 * kMiB, 16), {.rows = 512 * kKiB});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(StreamedBeside(*plan), 0);
  const ResidentWeights weights = ResidentWeightsOn(*plan, 0);
  EXPECT_EQ(std::ranges::count(weights.pinned, BlockKind::kExperts, &BlockId::kind), 4);
  EXPECT_EQ(std::ranges::count(weights.whole, BlockKind::kExperts, &BlockId::kind), 0);
  EXPECT_EQ(weights.parts.size(), 4u) << "the routers";
  for (const int part : weights.parts) EXPECT_FALSE(plan->parts[static_cast<size_t>(part)].on_demand());
}

TEST(OnDemandTest, TheLeastMemoryHasThePlaces) {
  const ModelSpec spec = SmallExpertModel();
  const PlanProblem few = ProblemOf(spec, 0, 2), more = ProblemOf(spec, 0, 3);
  const OneDeviceRequest request{.rows = 512 * kKiB};
  const Bytes unit = PartsOfLayer(few.head, 0)[1].unit_bytes;
  EXPECT_EQ(LeastMemory(more, request).total() - LeastMemory(few, request).total(), 4 * unit) << "one place in four layers";
  const Bytes least = LeastMemory(few, request).total();
  EXPECT_TRUE(PlanOneDevice(ProblemOf(spec, least, 2), request).ok());
  EXPECT_FALSE(PlanOneDevice(ProblemOf(spec, least - 1, 2), request).ok());
}

TEST(OnDemandTest, TheChosenNumberOfPlacesIsFasterThanStreamingAllExperts) {
  const ModelSpec spec = SmallExpertModel();
  const OneDeviceRequest request{.rows = 512 * kKiB, .streaming_margin = 256 * kKiB};
  for (const Bytes budget : {56 * kMiB, 70 * kMiB, 90 * kMiB}) {
    SCOPED_TRACE(budget);
    const auto whole = PlanOneDevice(ProblemOf(spec, budget, 0), request);
    ASSERT_TRUE(whole.ok()) << whole.status();
    ASSERT_TRUE(MayGainFromDemand(spec, *whole));
    const auto with = [&](int64_t places) { return PlanOneDevice(ProblemOf(spec, budget, places), request); };
    const auto plan = ChooseUnitPlaces(spec, {.plan = with});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_LT(TimeMs(*plan), 0.5 * TimeMs(*whole));
    // No other number is much better.
    for (int64_t places = kSmallChosen; places <= kSmallExperts; ++places) {
      const auto other = with(places);
      if (other.ok()) {
        EXPECT_LT(TimeMs(*plan), 1.1 * TimeMs(*other)) << places;
      }
    }
  }
  const auto fits = PlanOneDevice(ProblemOf(spec, 200 * kMiB, 0), request);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_FALSE(MayGainFromDemand(spec, *fits)) << "nothing streams";
}

}  // namespace
}  // namespace lime
