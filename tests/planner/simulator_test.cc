#include "planner/sim/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/sim/timeline_times.h"
#include "tests/planner/random_clusters.h"

namespace lime {
namespace {

using Kind = TimelineSpan::Kind;

constexpr int kSimulatedSeeds = 3000;

Plan PlanOf(const RandomClusters::Drawn& drawn) {
  absl::StatusOr<Plan> plan = MakePlan(drawn.problem, drawn.choice);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? *std::move(plan) : Plan{};
}

// Not nearly: the same doubles, for every step.
TEST(SimulatorTest, PredictionIsTheSimulationOfTheCompiledPrograms) {
  int streaming = 0, several = 0, prompts = 0, again = 0;
  for (uint64_t seed = 1; seed <= kSimulatedSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const RandomClusters::Drawn drawn = RandomClusters(seed).Draw();
    const Plan plan = PlanOf(drawn);
    ASSERT_FALSE(plan.parts.empty());
    const absl::StatusOr<SimulationResult> decode = SimulateDecode(plan, {.timeline = false});
    ASSERT_TRUE(decode.ok()) << decode.status().message() << "\n" << ToJsonText(plan);
    ASSERT_EQ(decode->step_ends_ms, drawn.step_ends_ms) << ToJsonText(plan);
    ASSERT_EQ(decode->MsPerStep(), plan.predicted.ms_per_step);
    streaming += drawn.choice.stages.streamed.empty() ? 0 : 1;
    several += plan.microbatches > 1 ? 1 : 0;
    again += plan.reads_once ? 0 : 1;
    if (plan.prompt_tokens == 0) continue;
    ++prompts;
    const absl::StatusOr<SimulationResult> prefill = SimulatePrefill(plan, {.timeline = false});
    ASSERT_TRUE(prefill.ok()) << prefill.status().message() << "\n" << ToJsonText(plan);
    // Of more sweeps the prediction is the settled rate.
    if (prefill->step_ends_ms.size() <= Evaluator::kSteps) {
      ASSERT_EQ(prefill->step_ends_ms.back(), plan.predicted.ttft_ms) << ToJsonText(plan);
    }
  }
  EXPECT_GT(streaming, kSimulatedSeeds / 2);
  EXPECT_GT(several, kSimulatedSeeds / 5);
  EXPECT_GT(prompts, kSimulatedSeeds / 3);
  EXPECT_GT(again, kSimulatedSeeds / 50);
}

// Also to the bit: reads on demand and the computation after them add up as in the evaluation.
TEST(SimulatorTest, PredictionIsTheSimulationWithPartsOnDemand) {
  int waits = 0, streaming = 0, prompts = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(seed);
    const RandomClusters::Drawn drawn = RandomClusters(seed, /*experts=*/true).Draw();
    const Plan plan = PlanOf(drawn);
    ASSERT_FALSE(plan.parts.empty());
    const absl::StatusOr<SimulationResult> decode = SimulateDecode(plan, {.timeline = false});
    ASSERT_TRUE(decode.ok()) << decode.status().message() << "\n" << ToJsonText(plan);
    ASSERT_EQ(decode->step_ends_ms, drawn.step_ends_ms) << ToJsonText(plan);
    ASSERT_EQ(decode->MsPerStep(), plan.predicted.ms_per_step);
    waits += std::ranges::any_of(plan.parts, [](const PlanPart& part) { return part.demand_ms > 0; }) ? 1 : 0;
    streaming += drawn.choice.stages.streamed.empty() ? 0 : 1;
    if (plan.prompt_tokens == 0) continue;
    ++prompts;
    const absl::StatusOr<SimulationResult> prefill = SimulatePrefill(plan, {.timeline = false});
    ASSERT_TRUE(prefill.ok()) << prefill.status().message() << "\n" << ToJsonText(plan);
    if (prefill->step_ends_ms.size() <= Evaluator::kSteps) {
      ASSERT_EQ(prefill->step_ends_ms.back(), plan.predicted.ttft_ms) << ToJsonText(plan);
    }
  }
  EXPECT_GT(waits, 900);
  EXPECT_GT(streaming, 500);
  EXPECT_GT(prompts, 300);
}

// How many devices had their ring full at some instant.
int ExpectWithinBudgets(const Plan& plan, const absl::StatusOr<SimulationResult>& result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  if (!result.ok()) return 0;
  int full = 0;
  for (int d = 0; d < plan.NumDevices(); ++d) {
    const SimulatedMemory& memory = result->devices[d];
    EXPECT_LE(memory.most_in_ring, plan.devices[d].memory.ring);
    EXPECT_LE(memory.most_used, plan.devices[d].budget - plan.devices[d].memory.margin);
    full += memory.most_in_ring > 0 && memory.most_in_ring == plan.devices[d].memory.ring ? 1 : 0;
  }
  return full;
}

TEST(SimulatorTest, AWaitForUnitsIsAWaitForWeightsOfTheirPart) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    const Plan plan = PlanOf(RandomClusters(seed, /*experts=*/true).Draw());
    const absl::StatusOr<SimulationResult> result = SimulateDecode(plan, {.steps = 2});
    ASSERT_TRUE(result.ok()) << result.status().message();
    std::vector<double> waited_ms(plan.parts.size(), 0);
    for (const TimelineSpan& span : result->timeline.spans) {
      if (span.kind == Kind::kWaitWeights && span.part >= 0) waited_ms[static_cast<size_t>(span.part)] += span.end_ms - span.begin_ms;
    }
    for (size_t p = 0; p < plan.parts.size(); ++p) {
      if (plan.parts[p].on_demand()) EXPECT_NEAR(waited_ms[p], 2 * plan.microbatches * plan.parts[p].demand_ms, 1e-6);
    }
  }
}

TEST(SimulatorTest, MemoryNeverExceedsABudgetAtAnyInstant) {
  int full = 0, full_in_prompts = 0;
  for (uint64_t seed = 1; seed <= kSimulatedSeeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const Plan plan = PlanOf(RandomClusters(seed).Draw());
    full += ExpectWithinBudgets(plan, SimulateDecode(plan, {.steps = 6, .timeline = false}));
    if (plan.prompt_tokens > 0) full_in_prompts += ExpectWithinBudgets(plan, SimulatePrefill(plan, {.timeline = false}));
  }
  EXPECT_GT(full, kSimulatedSeeds / 50) << "rings that are ever full: the test is of nothing else";
  EXPECT_GT(full_in_prompts, kSimulatedSeeds / 100) << "the same of prompts";
}

TEST(SimulatorTest, APlanIsWrittenAndReadTheSame) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    const Plan plan = PlanOf(RandomClusters(seed).Draw());
    const absl::StatusOr<Plan> read = ParsePlan(ToJsonText(plan), "plan.json");
    ASSERT_TRUE(read.ok()) << read.status().message();
    ASSERT_EQ(*read, plan);
  }
}

// Every device does one thing of a kind at a time, and what it did or waited for in a step fills
// the step without a gap.
TEST(SimulatorTest, TheTimelineHasNoOverlapsAndNoGaps) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    const Plan plan = PlanOf(RandomClusters(seed).Draw());
    const absl::StatusOr<SimulationResult> result = SimulateDecode(plan, {.steps = 5});
    ASSERT_TRUE(result.ok()) << result.status().message();
    const auto lane = [](Kind kind) { return kind == Kind::kLoad ? 1 : kind == Kind::kSend ? 2 : 0; };
    for (int d = 0; d < plan.NumDevices(); ++d) {
      std::vector<TimelineSpan> lanes[3];
      for (const TimelineSpan& span : result->timeline.spans) {
        if (span.device == d) lanes[lane(span.kind)].push_back(span);
      }
      for (std::vector<TimelineSpan>& spans : lanes) {
        std::ranges::stable_sort(spans, {}, [](const TimelineSpan& span) { return std::pair(span.begin_ms, span.end_ms); });
        const bool computes = &spans == &lanes[0];
        for (size_t i = 1; i < spans.size(); ++i) {
          ASSERT_GE(spans[i].begin_ms, spans[i - 1].end_ms);
          if (computes) {
            ASSERT_EQ(spans[i].begin_ms, spans[i - 1].end_ms);
          }
        }
        if (computes && !spans.empty()) {
          ASSERT_EQ(spans.front().begin_ms, 0);
        }
      }
    }
  }
}

TEST(SimulatorTest, TheHostOfKvIsAskedWhereSomeMayBeAway) {
  // Two devices, one layer and a head; the second has what the first has no room for.
  Plan plan = {.model_name = "two", .vocab_size = 100, .context = 1024, .page_bytes = 1000};
  const auto attention = [](TensorRole role) {
    return PlanPart{.block = {BlockKind::kAttention, 0}, .rows = {{role, 0, 8}}, .bytes = 10, .decode_ms = 1};
  };
  plan.parts = {attention(TensorRole::kV),
                {.block = {BlockKind::kAttention, 0}, .kv_end = 1024, .decode_ms = 5},
                attention(TensorRole::kO),
                {.block = {BlockKind::kMlp, 0}, .rows = {{TensorRole::kUp, 0, 8}}, .bytes = 10, .decode_ms = 1},
                {.block = {BlockKind::kHead, 0}, .rows = {{TensorRole::kOutput, 0, 100}}, .bytes = 10, .decode_ms = 1}};
  plan.parts[0].kv_pages = 64;
  plan.parts[1].bytes = KvPartBytes(plan, plan.parts[1]);
  plan.stages = {{0, 0, 4}, {1, 4, 5}};
  plan.decode = {.tx_ms = 0.5, .lat_ms = 0.25};
  plan.devices = {{.name = "a", .max_layer_pages = 40, .kv_host = 1}, {.name = "b"}};
  const std::vector<PlanNeed> needs = NeedsOf(plan);
  for (int d = 0; d < 2; ++d) {
    PlanDevice& device = plan.devices[d];
    device.kv_pages = needs[d].kv_pages;
    device.memory = {.kv = needs[d].kv_pages * plan.page_bytes, .weights = needs[d].weights, .hosted = needs[d].hosted};
    device.budget = device.memory.total();
  }
  EXPECT_EQ(needs[0].kv_pages, 40);
  // 20 working pages, so 20 others; of 64 in all, whole pieces are at the host.
  EXPECT_EQ(needs[1].hosted, 3 * KvPieceBytes(plan));
  ASSERT_TRUE(plan.Validate().ok()) << plan.Validate().message();
  const absl::StatusOr<SimulationResult> result = SimulateDecode(plan, {.steps = 1});
  ASSERT_TRUE(result.ok()) << result.status().message();
  // V 1, the answer 5, O and MLP 2, the hop 0.75, the head 1.
  EXPECT_EQ(result->step_ends_ms[0], 9.75);
  const auto waited = std::ranges::find(result->timeline.spans, Kind::kWaitKv, &TimelineSpan::kind);
  ASSERT_NE(waited, result->timeline.spans.end());
  EXPECT_EQ(waited->begin_ms, 1);
  EXPECT_EQ(waited->end_ms, 6);
  const absl::StatusOr<Plan> less = WithResidency(plan, {.layer_pages = 40});
  ASSERT_TRUE(less.ok()) << less.status().message();
  const absl::StatusOr<SimulationResult> early = SimulateDecode(*less, {.steps = 1});
  ASSERT_TRUE(early.ok()) << early.status().message();
  EXPECT_EQ(early->step_ends_ms[0], 4.75);
}

TEST(SimulatorTest, ProgramsThatWaitForOneAnotherAreAnErrorNotAWait) {
  const Plan plan = PlanOf(RandomClusters(3).Draw());
  absl::StatusOr<std::vector<Program>> programs = Compile(plan, DecodeShape(plan));
  ASSERT_TRUE(programs.ok());
  for (Program& program : *programs) std::erase_if(program.step, [](const Instruction& i) { return std::holds_alternative<Send>(i); });
  const absl::StatusOr<SimulationResult> result = Simulate(plan, {.programs = {*programs}, .steps = {0, 0}});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal) << result.status().message();
}

TEST(TimelineTest, ATraceIsJsonThatNamesEveryDevice) {
  const Plan plan = PlanOf(RandomClusters(5).Draw());
  const absl::StatusOr<SimulationResult> result = SimulateDecode(plan, {.steps = 2});
  ASSERT_TRUE(result.ok());
  const nlohmann::json trace = nlohmann::json::parse(TraceJson(result->timeline), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(trace.is_object());
  size_t spans = 0, processes = 0;
  for (const auto& event : trace["traceEvents"]) {
    spans += event["ph"] == "X" ? 1 : 0;
    processes += event["name"] == "process_name" ? 1 : 0;
  }
  EXPECT_EQ(spans, result->timeline.spans.size());
  EXPECT_EQ(processes, plan.devices.size());
}

TEST(TimelineTest, AColumnShowsWhatFilledMostOfIt) {
  Timeline timeline = {.devices = {"a"}, .parts = {"attention 0"}};
  timeline.spans = {{.kind = Kind::kCompute, .begin_ms = 0, .end_ms = 4, .stage = 0, .microbatch = 0, .part = 0},
                    {.kind = Kind::kWaitWeights, .begin_ms = 4, .end_ms = 7, .part = 0},
                    {.kind = Kind::kCompute, .begin_ms = 7, .end_ms = 9.6, .stage = 2, .microbatch = 0, .part = 0},
                    {.kind = Kind::kLoad, .begin_ms = 1.5, .end_ms = 7, .part = 0},
                    {.kind = Kind::kSend, .begin_ms = 9.6, .end_ms = 10, .stage = 2, .microbatch = 0, .peer = 0}};
  EXPECT_EQ(GanttText(timeline, 0, 10, 10),
            "0 .. 10 ms, 1 ms a column\n"
            "a            compute |0000...222|\n"
            "             disk    | ======   |\n"
            "             link    |          |\n");
}

TEST(TimelineTest, WhatIsMeasuredHasArrowsFromSendsToReceives) {
  Timeline timeline = {.devices = {"a", "b"}, .parts = {"attention 0"}};
  timeline.spans = {{.kind = Kind::kSend, .device = 0, .begin_ms = 1, .end_ms = 3, .step = 4, .stage = 0, .microbatch = 0, .peer = 1},
                    {.kind = Kind::kSend, .device = 0, .begin_ms = 5, .end_ms = 6, .step = 5, .stage = 0, .microbatch = 0, .peer = 1},
                    {.kind = Kind::kReceive, .device = 1, .begin_ms = 3, .end_ms = 3.5, .step = 4, .stage = 0, .microbatch = 0, .peer = 0}};
  const nlohmann::json trace = nlohmann::json::parse(TraceJson(timeline), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(trace.is_object());
  std::vector<std::string> arrows;
  for (const auto& event : trace["traceEvents"]) {
    if (event.value("cat", "") == "message") arrows.push_back(absl::StrCat(event["ph"].get<std::string>(), " ", event["pid"].get<int>()));
  }
  EXPECT_EQ(arrows, (std::vector<std::string>{"s 0", "f 1"}));
  EXPECT_EQ(GanttText(timeline, 0, 10, 10).find('b'), GanttText(timeline, 0, 10, 10).rfind('b'));  // one lane: what it received has none
}

TEST(TimelineTest, HiddenLoadingIsWhatNothingWaitedFor) {
  Timeline timeline = {.devices = {"a", "b", "c"}, .parts = {"attention 0"}};
  timeline.spans = {{.kind = Kind::kCompute, .device = 0, .begin_ms = 0, .end_ms = 5},
                    {.kind = Kind::kLoad, .device = 0, .begin_ms = 2, .end_ms = 7, .part = 0},
                    {.kind = Kind::kLoad, .device = 0, .begin_ms = 6, .end_ms = 10, .part = 0},  // they overlap: 8 ms together
                    {.kind = Kind::kWaitWeights, .device = 0, .begin_ms = 5, .end_ms = 7, .part = 0},
                    {.kind = Kind::kLoad, .device = 1, .begin_ms = 0, .end_ms = 2, .part = 0},
                    {.kind = Kind::kWaitWeights, .device = 1, .begin_ms = 0, .end_ms = 2, .part = 0},
                    {.kind = Kind::kWaitInput, .device = 2, .begin_ms = 0, .end_ms = 9}};
  const std::vector<DeviceTimes> times = TimesOf(timeline, 0, 100);
  EXPECT_EQ(times[0].load_ms, 8);
  EXPECT_EQ(times[0].compute_ms, 5);
  EXPECT_EQ(times[2].wait_input_ms, 9);
  EXPECT_EQ(HiddenLoading(times[0]), 0.75);
  EXPECT_EQ(HiddenLoading(times[1]), 0.0);
  EXPECT_EQ(HiddenLoading(times[2]), std::nullopt);
  EXPECT_EQ(HiddenLoading(times), 0.6);
  EXPECT_EQ(TimesOf(timeline, 4, 6)[0].load_ms, 2);  // only what lies within
  EXPECT_EQ(TimesOf(timeline, 4, 6)[0].compute_ms, 1);
}

}  // namespace
}  // namespace lime
