#include "planner/one_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "planner/kv/kv_levels.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/plan_residency.h"
#include "planner/sim/simulator.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kPart = 2 * kMiB;
constexpr Bytes kRows = 512 * kKiB, kStreamingMargin = 256 * kKiB;

ModelSpec Model(bool tied) {
  return *DescribeModel(LlamaConfig(/*layers=*/4, /*hidden=*/1024, /*inner=*/2048, /*vocab=*/8000, tied), "small");
}

PlanProblem OneDeviceProblem(const ModelSpec& spec, Bytes budget, double disk_rate = 1e9, int32_t sequences = 1) {
  const ClusterDevice device = Board("local", budget, 10e9, disk_rate);
  const auto problem = MakePlanProblem(spec, {&device, 1},
                                       {.context = 200,
                                        .sequences = sequences,
                                        .batches = {sequences},
                                        .part_bytes = kPart,
                                        .embedding_with_head = true,
                                        .prompt_tokens = 100,
                                        .chunks = {64}});
  EXPECT_TRUE(problem.ok()) << problem.status();
  return *problem;
}

OneDeviceRequest Request(Placement placement = Placement::kAuto) {
  return {.placement = placement, .rows = kRows, .streaming_margin = kStreamingMargin};
}

Bytes Streamed(const Plan& plan) {
  Bytes bytes = 0;
  for (const PlanPart& part : plan.parts) bytes += part.streamed ? part.bytes : 0;
  return bytes;
}
Bytes PartsOfModel(const Plan& plan) {
  Bytes bytes = 0;
  for (const PlanPart& part : plan.parts) bytes += part.bytes;
  return bytes;
}

// The least budget in which all is resident.
Bytes EnoughForAll(const ModelSpec& spec) {
  const auto plan = PlanOneDevice(OneDeviceProblem(spec, 1000 * kMiB), Request());
  EXPECT_TRUE(plan.ok()) << plan.status();
  const PlanMemory& memory = plan->devices[0].memory;
  return memory.total() - memory.margin + Board("local", 0).margin;
}
Bytes LeastBudget(const ModelSpec& spec) {
  return LeastMemory(OneDeviceProblem(spec, 0), Request()).total() + kStreamingMargin;
}

TEST(OneDeviceTest, WhatFitsStaysToTheByteAndNothingStreams) {
  for (const bool tied : {false, true}) {
    const ModelSpec spec = Model(tied);
    const Bytes enough = EnoughForAll(spec);
    const auto all = PlanOneDevice(OneDeviceProblem(spec, enough), Request());
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(Streamed(*all), 0);
    EXPECT_EQ(all->devices[0].memory.ring, 0);
    EXPECT_EQ(all->embedding, tied ? EmbeddingPlacement::kWithHead : EmbeddingPlacement::kResident);
    const auto less = PlanOneDevice(OneDeviceProblem(spec, enough - 1), Request());
    ASSERT_TRUE(less.ok()) << less.status();
    EXPECT_EQ(less->embedding == EmbeddingPlacement::kByRows, !tied);
    EXPECT_EQ(Streamed(*less) > 0, tied) << "a table of its own is read by rows before a part streams";
    EXPECT_EQ(less->devices[0].memory.ring > 0, tied);
  }
}

TEST(OneDeviceTest, ATiedTableIsCountedOnce) {
  const ModelSpec spec = Model(/*tied=*/true);
  const auto plan = PlanOneDevice(OneDeviceProblem(spec, EnoughForAll(spec)), Request());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlanMemory& memory = plan->devices[0].memory;
  EXPECT_LE(memory.weights + memory.embedding, spec.WeightBytes() + plan->NumParts() * Bytes{64} * kKiB);
  EXPECT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec);
}

TEST(OneDeviceTest, MemoryAddsUpToTheBudgetWhateverIsAsked) {
  for (const ModelSpec& spec : {Model(/*tied=*/false), Model(/*tied=*/true), SmallHybrid()}) {
    const Bytes least = LeastBudget(spec), enough = EnoughForAll(spec);
    for (const Placement placement :
         {Placement::kAuto, Placement::kFirstN, Placement::kLastN, Placement::kInterleaved, Placement::kAttentionFirst}) {
      for (Bytes budget = least; budget < enough; budget += (enough - least) / 7) {
        const auto plan = PlanOneDevice(OneDeviceProblem(spec, budget), Request(placement));
        ASSERT_TRUE(plan.ok()) << plan.status();
        EXPECT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec);
        EXPECT_EQ(plan->devices[0].memory.total(), budget);
        EXPECT_GE(plan->devices[0].memory.margin, Board("local", 0).margin + (Streamed(*plan) > 0 ? kStreamingMargin : 0));
        const auto simulated = SimulateDecode(*plan);
        ASSERT_TRUE(simulated.ok()) << simulated.status();
        EXPECT_EQ(simulated->MsPerStep(), plan->predicted.ms_per_step) << ToJsonText(*plan);
        EXPECT_DOUBLE_EQ(MsPerStepAt(*plan, 1e9), plan->predicted.ms_per_step);
        EXPECT_GE(MsPerStepAt(*plan, 1e8), static_cast<double>(Streamed(*plan)) / 1e5 * (1 - 1e-9));
      }
    }
    EXPECT_EQ(PlanOneDevice(OneDeviceProblem(spec, least - kMiB), Request()).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

// Of 3,200 positions KV takes 50 MiB, beside 51 MiB of parts.
TEST(OneDeviceTest, KvGrowsByLevelsAndLeavesTheMarginAtEachOfThem) {
  for (const bool tied : {false, true}) {
    const ModelSpec spec = Model(tied);
    const auto problem_of = [&](Bytes budget, int64_t kv_tokens) {
      const ClusterDevice device = Board("local", budget);
      return *MakePlanProblem(spec, {&device, 1},
                              {.context = 3200,
                               .kv_tokens = kv_tokens,
                               .batches = {1},
                               .part_bytes = kPart,
                               .embedding_with_head = true,
                               .prompt_tokens = 100,
                               .chunks = {64}});
    };
    int grown = 0;
    const Bytes least = LeastMemory(problem_of(0, 0), Request()).total() + kStreamingMargin;
    for (const Bytes more : {1 * kMiB, 12 * kMiB, 30 * kMiB, 60 * kMiB, 200 * kMiB}) {
      const auto whole = PlanOneDevice(problem_of(least + more, 0), Request());
      ASSERT_TRUE(whole.ok()) << whole.status();
      EXPECT_FALSE(GrowsKv(*whole));
      const auto grows = PlanOneDevice(problem_of(least + more, 256), Request());
      if (!grows.ok()) continue;  // the least ring of what grows is of two parts
      ++grown;
      EXPECT_TRUE(grows->Validate(spec).ok()) << grows->Validate(spec);
      ASSERT_TRUE(GrowsKv(*grows));
      EXPECT_EQ(ResidencyOf(*grows).layer_pages, 16);
      EXPECT_LE(Streamed(*grows), Streamed(*whole) + 2 * kPart);
      EXPECT_EQ(grows->devices[0].least_margin, Board("local", 0).margin + kStreamingMargin);
      const KvLevels levels = MakeKvLevels(*grows);
      EXPECT_EQ(levels.exhausted, "");
      EXPECT_EQ(levels.levels.back().residency.layer_pages, FullLayerPages(*grows));
      for (const KvLevel& level : levels.levels) {
        const auto at = WithResidency(*grows, level.residency);
        ASSERT_TRUE(at.ok()) << at.status();
        EXPECT_GE(at->devices[0].memory.margin, grows->devices[0].least_margin);
        EXPECT_EQ(at->devices[0].memory.total(), least + more);
        EXPECT_NEAR(SimulateDecode(*at)->MsPerStep(), level.ms_per_step, 1e-6 * level.ms_per_step);
      }
    }
    EXPECT_GE(grown, 4);
  }
}

TEST(OneDeviceTest, EqualProblemsHaveEqualPlans) {
  const ModelSpec spec = Model(/*tied=*/false);
  const PlanProblem problem = OneDeviceProblem(spec, (LeastBudget(spec) + EnoughForAll(spec)) / 2);
  const auto one = PlanOneDevice(problem, Request()), other = PlanOneDevice(problem, Request());
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(*one, *other);
}

TEST(OneDeviceTest, MoreMemoryIsNotSlowerAndAutoIsAsFastAsEveryPlacement) {
  for (const double disk_rate : {2e8, 1e9, 5e9}) {
    const ModelSpec spec = Model(/*tied=*/false);
    double before = std::numeric_limits<double>::infinity();
    for (Bytes budget = LeastBudget(spec); budget < EnoughForAll(spec); budget += 3 * kMiB) {
      const PlanProblem problem = OneDeviceProblem(spec, budget, disk_rate);
      const auto plan = PlanOneDevice(problem, Request());
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_LE(plan->predicted.ms_per_step, before * 1.02) << FormatBytes(budget);
      before = std::min(before, plan->predicted.ms_per_step);
      for (const Placement placement : {Placement::kFirstN, Placement::kLastN, Placement::kInterleaved, Placement::kAttentionFirst}) {
        const auto other = PlanOneDevice(problem, Request(placement));
        ASSERT_TRUE(other.ok()) << other.status();
        EXPECT_LE(plan->predicted.ms_per_step, other->predicted.ms_per_step * 1.03) << static_cast<int>(placement);
      }
    }
  }
}

// Where the disk decides, nearly all memory has weights: but for the smallest ring less than a part
// is left.
TEST(OneDeviceTest, ASlowDiskLeavesNoMemoryUnused) {
  const ModelSpec spec = Model(/*tied=*/false);
  const Bytes least = LeastBudget(spec);
  for (Bytes more = 0; more < 40 * kMiB; more += 5 * kMiB) {
    const auto plan = PlanOneDevice(OneDeviceProblem(spec, least + more, 1e8), Request());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_GE(PartsOfModel(*plan) - Streamed(*plan), more - 5 * kPart) << FormatBytes(more);
  }
}

TEST(OneDeviceTest, PlacementsAreWhatTheirNamesSay) {
  const ModelSpec spec = Model(/*tied=*/false);
  const PlanProblem problem = OneDeviceProblem(spec, (LeastBudget(spec) + EnoughForAll(spec)) / 2);
  const auto streamed = [&](Placement placement) {
    const auto plan = PlanOneDevice(problem, Request(placement));
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::vector<bool> flags;
    flags.reserve(plan->parts.size());
    for (const PlanPart& part : plan->parts) flags.push_back(part.streamed);
    return flags;
  };
  const auto first = streamed(Placement::kFirstN), last = streamed(Placement::kLastN), spread = streamed(Placement::kInterleaved);
  EXPECT_TRUE(std::ranges::is_sorted(first)) << "what stays comes first";
  EXPECT_FALSE(first.front());
  EXPECT_TRUE(std::ranges::is_sorted(last, std::greater<>()));
  EXPECT_FALSE(last.back());
  int changes = 0;
  for (size_t p = 1; p < spread.size(); ++p) changes += spread[p] != spread[p - 1] ? 1 : 0;
  EXPECT_GT(changes, 4);
}

// Half of the memory between everything streamed and everything resident has room for all attention
// halves, and for some of the other blocks.
TEST(OneDeviceTest, AttentionFirstStreamsNoAttentionBeforeAnyOtherBlock) {
  for (const ModelSpec& spec : {Model(/*tied=*/false), SmallHybrid()}) {
    const Bytes least = LeastBudget(spec), enough = EnoughForAll(spec);
    for (Bytes budget = least; budget < enough; budget += (enough - least) / 9) {
      const auto plan = PlanOneDevice(OneDeviceProblem(spec, budget), Request(Placement::kAttentionFirst));
      ASSERT_TRUE(plan.ok()) << plan.status();
      std::vector<bool> attention, others;  // whether they stream
      for (const PlanPart& part : plan->parts) (IsAttentionHalf(part.block.kind) ? attention : others).push_back(part.streamed);
      EXPECT_TRUE(std::ranges::is_sorted(attention)) << "what stays comes first";
      EXPECT_TRUE(std::ranges::is_sorted(others)) << "what stays comes first";
      EXPECT_TRUE(!attention.back() || others.front()) << FormatBytes(budget);
    }
  }
}

TEST(OneDeviceTest, TheRingIsAsAskedFor) {
  const ModelSpec spec = Model(/*tied=*/false);
  const Bytes budget = LeastBudget(spec) + 30 * kMiB;
  OneDeviceRequest request = Request();
  for (const Bytes ring : {5 * kMiB, 12 * kMiB, 25 * kMiB}) {
    request.ring = ring;
    const auto plan = PlanOneDevice(OneDeviceProblem(spec, budget), request);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->devices[0].memory.ring, ring);
    EXPECT_EQ(plan->devices[0].memory.total(), budget);
  }
  request.ring = kKiB;
  const auto two = PlanOneDevice(OneDeviceProblem(spec, budget), request);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_GE(two->devices[0].memory.ring, 2 * std::ranges::max_element(two->parts, {}, &PlanPart::bytes)->bytes) << "two parts at least";
  request.ring = 50 * kMiB;
  EXPECT_THAT(std::string(PlanOneDevice(OneDeviceProblem(spec, budget), request).status().message()),
              HasSubstr("--pool asks for 50.00 MiB"));
}

TEST(OneDeviceTest, AShareIsKeptTo) {
  for (const bool tied : {false, true}) {
    const ModelSpec spec = Model(tied);
    for (const double share : {0.0, 0.3, 0.5, 0.9, 1.0}) {
      OneDeviceRequest request = Request();
      request.share = share;
      const auto plan = PlanOneDevice(OneDeviceProblem(spec, 1000 * kMiB), request);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const Bytes all = PartsOfModel(*plan) + (tied ? 0 : plan->embedding_bytes);
      const Bytes resident =
          PartsOfModel(*plan) - Streamed(*plan) + (plan->embedding == EmbeddingPlacement::kResident ? plan->embedding_bytes : 0);
      EXPECT_LE(static_cast<double>(resident), share * static_cast<double>(all) + 1);
      if (share < 0.9) {
        EXPECT_GE(static_cast<double>(resident), share * static_cast<double>(all) - 2.0 * kPart);
      }
      EXPECT_LE(plan->devices[0].memory.ring, 64 * kMiB) << "the rest is not for the ring";
    }
  }
}

TEST(OneDeviceTest, SeveralSequencesShareAStep) {
  const ModelSpec spec = Model(/*tied=*/true);
  const PlanProblem problem = OneDeviceProblem(spec, (LeastBudget(spec) + EnoughForAll(spec)) / 2 + 8 * kMiB, 1e9, /*sequences=*/4);
  const auto plan = PlanOneDevice(problem, Request());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->batch, 4);
  EXPECT_EQ(plan->microbatches, 1);
  EXPECT_TRUE(plan->Validate(spec).ok()) << plan->Validate(spec);
}

}  // namespace
}  // namespace lime
