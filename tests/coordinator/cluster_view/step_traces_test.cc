#include "coordinator/cluster_view/step_traces.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "coordinator/cluster_view/plan_view.h"
#include "gtest/gtest.h"
#include "planner/sim/simulator.h"
#include "tests/coordinator/cluster_view/small_view.h"

namespace lime {
namespace {

constexpr int kSteps = 8;

// Devices that work exactly as simulated, each by a clock of its own.
class StepTracesTest : public ::testing::Test {
 protected:
  StepTracesTest() : timeline_(SimulateDecode(plan_, {.steps = kSteps})->timeline) {}

  double Offset(int32_t device) const { return 1e6 * (device + 1); }

  // What the device has recorded of steps [first, end).
  TraceChunk Chunk(int32_t device, int32_t first, int32_t end) const {
    TraceChunk chunk{.epoch = plan_.epoch, .received_ms = 10.5 + Offset(device), .answered_ms = 10.5 + Offset(device)};
    for (TimelineSpan span : timeline_.spans) {
      if (span.device != device || span.step < first || span.step >= end) continue;
      span.begin_ms += Offset(device), span.end_ms += Offset(device);
      span.device = 0;
      chunk.spans.push_back(span);
    }
    return chunk;
  }
  void Add(int32_t device, int32_t first, int32_t end) {
    traces_.Add(plan_.devices[static_cast<size_t>(device)].name, 10, 11, Chunk(device, first, end));
  }

  void ExpectStep(int32_t step) const {
    const std::optional<StepTraces::Step> newest = traces_.Newest(plan_);
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->step, step);
    const std::vector<SpanFacts> simulated = SpansOfStep(timeline_, step);
    ASSERT_EQ(newest->spans.size(), simulated.size());
    for (size_t i = 0; i < simulated.size(); ++i) {
      EXPECT_EQ(newest->spans[i].device, simulated[i].device);
      EXPECT_EQ(newest->spans[i].kind, simulated[i].kind);
      EXPECT_EQ(newest->spans[i].what, simulated[i].what);
      EXPECT_NEAR(newest->spans[i].begin_ms, simulated[i].begin_ms, 1e-6);
      EXPECT_NEAR(newest->spans[i].end_ms, simulated[i].end_ms, 1e-6);
    }
  }

  const Plan plan_ = SmallServedPlan();
  const Timeline timeline_;
  StepTraces traces_;
};

TEST_F(StepTracesTest, TheNewestWholeStepIsShownOnOneClock) {
  for (int32_t device = 0; device < 3; ++device) Add(device, 0, kSteps);
  ExpectStep(kSteps - 2);  // the newest one may go on
}

TEST_F(StepTracesTest, OnceNothingComesTheLastStepIsWhole) {
  for (int32_t device = 0; device < 3; ++device) Add(device, 0, kSteps);
  for (int32_t device = 0; device < 3; ++device) Add(device, kSteps, kSteps);
  ExpectStep(kSteps - 1);
}

TEST_F(StepTracesTest, SpansMayComeInPiecesAndAtDifferentTimes) {
  for (int32_t step = 0; step < kSteps; ++step) {
    Add(0, step, step + 1);
    Add(1, step, step + 1);
    if (step % 2 == 1) Add(2, step - 1, step + 1);
  }
  ExpectStep(kSteps - 2);
}

TEST_F(StepTracesTest, ThereIsNoStepUntilEveryDeviceOfThePlanHasOne) {
  EXPECT_FALSE(traces_.Newest(plan_));
  Add(0, 0, kSteps), Add(1, 0, kSteps);
  EXPECT_FALSE(traces_.Newest(plan_));
  Add(2, 0, 1);
  EXPECT_FALSE(traces_.Newest(plan_)) << "its first step may go on";
  Add(2, 1, 2);
  EXPECT_TRUE(traces_.Newest(plan_));
}

TEST_F(StepTracesTest, AnotherPlanBeginsAnewAndSpansOfAnOlderOneAreDropped) {
  for (int32_t device = 0; device < 3; ++device) Add(device, 0, kSteps);
  Plan next = plan_;
  next.epoch = plan_.epoch + 1;
  EXPECT_FALSE(traces_.Newest(next));
  TraceChunk chunk = Chunk(1, 0, kSteps);
  chunk.epoch = next.epoch;
  traces_.Add("b", 10, 11, chunk);
  Add(1, 0, kSteps);
  EXPECT_FALSE(traces_.Newest(plan_)) << "b has the next plan already";
}

TEST_F(StepTracesTest, SpansThatThePlanDoesNotHaveShowNothing) {
  for (int32_t device = 0; device < 3; ++device) Add(device, 0, kSteps);
  TraceChunk chunk = Chunk(0, kSteps, kSteps);
  chunk.spans = {{.step = kSteps - 1, .part = plan_.NumParts()}};
  traces_.Add("a", 10, 11, chunk);
  EXPECT_FALSE(traces_.Newest(plan_));
}

TEST_F(StepTracesTest, AClockThatDriftsIsComparedAnew) {
  for (int i = 0; i < 200; ++i) {  // the clock of "a" gains 10 ms, one at each answer
    const double drift = std::min(i, 10);
    traces_.Add("a", 10, 11, {.epoch = plan_.epoch, .received_ms = 10.5 + Offset(0) + drift, .answered_ms = 10.5 + Offset(0) + drift});
  }
  TraceChunk chunk = Chunk(0, 0, kSteps);
  for (TimelineSpan& span : chunk.spans) span.begin_ms += 10, span.end_ms += 10;
  chunk.received_ms += 10, chunk.answered_ms += 10;
  traces_.Add("a", 10, 11, chunk);
  Add(1, 0, kSteps), Add(2, 0, kSteps);
  ExpectStep(kSteps - 2);
}

}  // namespace
}  // namespace lime
