#include "coordinator/logic/cluster_difference.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Three devices with a part of 10 ms each; on a 20 MB stream, at 1 MB/ms. 40 ms a token.
Plan ThreeDevices() {
  Plan plan;
  plan.devices = {{.name = "a", .disk_mb_per_ms = 1}, {.name = "b", .disk_mb_per_ms = 1}, {.name = "c"}};
  plan.parts = {{.bytes = 20'000'000, .streamed = true, .decode_ms = 10}, {.decode_ms = 10}, {.decode_ms = 10}};
  plan.stages = {{.device = 0, .lo = 0, .hi = 1}, {.device = 1, .lo = 1, .hi = 2}, {.device = 2, .lo = 2, .hi = 3}};
  plan.decode.tx_ms = 2;
  plan.predicted.ms_per_token = 40;
  return plan;
}

// All as planned, 50 steps of which each took the same.
ClusterObservations AsPlanned() {
  ClusterObservations seen{.steps = 50, .decode_seconds = 2};
  for (const char* name : {"a", "b", "c"})
    seen.devices.push_back({.name = name, .statistics = {.decode_ms = 500, .planned_decode_ms = 500}});
  seen.devices[0].statistics.disk_ms = 1000, seen.devices[0].statistics.disk_bytes = 1'000'000'000;
  return seen;
}

TEST(ClusterDifferenceTest, WhatHoldsIsNotExplained) {
  const PredictionReport report = ExplainClusterDifference(ThreeDevices(), 42, AsPlanned());
  EXPECT_EQ(report.cause, DifferenceCause::kNone);
  EXPECT_THAT(report.sentence, IsEmpty());
}

TEST(ClusterDifferenceTest, ADeviceThatComputesSlowerIsNamed) {
  ClusterObservations seen = AsPlanned();
  seen.devices[1].statistics.decode_ms = 1500;
  const PredictionReport report = ExplainClusterDifference(ThreeDevices(), 60, seen);
  EXPECT_EQ(report.cause, DifferenceCause::kDeviceRate);
  EXPECT_NEAR(report.explained_ms, 20, 1e-9);
  EXPECT_EQ(report.sentence, "predicted 33 % too low: device \"b\" computed for 30.00 ms a step instead of the planned 10.00");
}

TEST(ClusterDifferenceTest, DaemonsThatShareTheCoresOfOneMachineAreNamedTogether) {
  ClusterObservations seen = AsPlanned();
  for (DeviceWork& work : seen.devices) work.statistics.decode_ms = 1000;
  seen.shared = {{"a", "b", "c"}};
  const PredictionReport report = ExplainClusterDifference(ThreeDevices(), 70, seen);
  EXPECT_EQ(report.cause, DifferenceCause::kDeviceRate);
  EXPECT_NEAR(report.explained_ms, 30, 1e-9);
  EXPECT_THAT(report.sentence, HasSubstr("devices \"a\", \"b\", \"c\", which share the cores of one machine, computed for 60.00 ms"));
}

TEST(ClusterDifferenceTest, ASlowDiskIsNamedForWhatDoesNotHideBehindComputing) {
  ClusterObservations seen = AsPlanned();
  seen.devices[0].statistics.disk_ms = 5000;  // 100 ms a step
  const PredictionReport report = ExplainClusterDifference(ThreeDevices(), 100, seen);
  EXPECT_EQ(report.cause, DifferenceCause::kDiskRate);
  EXPECT_NEAR(report.explained_ms, 60, 1e-9);
  EXPECT_THAT(report.sentence, HasSubstr("the disk of device \"a\" read for 100.00 ms a step instead of the planned 20.00"));
  seen.devices[0].statistics.disk_ms = 1900;  // 38 ms: hidden
  EXPECT_EQ(ExplainClusterDifference(ThreeDevices(), 100, seen).cause, DifferenceCause::kUnknown);
}

TEST(ClusterDifferenceTest, ALinkThatIsSlowerThanItsProfileIsNamedWithBothRates) {
  ClusterObservations seen = AsPlanned();
  seen.links = {{.from = "b", .to = "c", .bytes_per_second = 1.25e6, .planned_bytes_per_second = 12.5e6}};
  const PredictionReport report = ExplainClusterDifference(ThreeDevices(), 58, seen);
  EXPECT_EQ(report.cause, DifferenceCause::kLinkRate);
  EXPECT_NEAR(report.explained_ms, 18, 1e-9);
  EXPECT_THAT(report.sentence, HasSubstr("the link from \"b\" to \"c\" carries 10 Mbit/s, but its profile says 100"));
}

TEST(ClusterDifferenceTest, FewStepsAreNotJudged) {
  ClusterObservations seen = AsPlanned();
  seen.devices[1].statistics.decode_ms = 1500;
  seen.steps = 2;
  EXPECT_EQ(ExplainClusterDifference(ThreeDevices(), 60, seen).cause, DifferenceCause::kTooShort);
}

TEST(ClusterDifferenceTest, WhatNothingExplainsIsSaidToBeSo) {
  const PredictionReport report = ExplainClusterDifference(ThreeDevices(), 90, AsPlanned());
  EXPECT_EQ(report.cause, DifferenceCause::kUnknown);
  EXPECT_THAT(report.sentence, HasSubstr("lime profile --cluster"));
}

}  // namespace
}  // namespace lime
