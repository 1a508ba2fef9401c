#include "planner/plan/prediction.h"

#include <cmath>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Ten seconds of 100 steps on a machine of two cores that was ours alone.
PredictionObservations Quiet() {
  return {.wall_seconds = 10, .steps = 100, .decode_seconds = 10, .threads = 2, .cores = 2};
}

TEST(PredictionTest, WithinATenthThereIsNothingToExplain) {
  for (const double measured : {91.0, 100.0, 109.0}) {
    const PredictionReport report = ExplainDifference(100, measured, Quiet());
    EXPECT_EQ(report.cause, DifferenceCause::kNone);
    EXPECT_THAT(report.sentence, IsEmpty());
    EXPECT_NEAR(report.error, 100 / measured - 1, 1e-12);
  }
}

TEST(PredictionTest, WithoutAPredictionOrAMeasurementNothingIsSaid) {
  for (const auto& [predicted, measured] : {std::pair(0.0, 5.0), std::pair(5.0, 0.0), std::pair(std::nan(""), 5.0)}) {
    EXPECT_EQ(ExplainDifference(predicted, measured, Quiet()).cause, DifferenceCause::kNone);
  }
}

// 100 MB a step took 100 ms at 1 GB/s; profiled were 2 GB/s, 50 ms.
TEST(PredictionTest, ASlowDiskIsNamedWithBothRates) {
  PredictionObservations seen = Quiet();
  seen.disk_bytes = 100 * 100e6;
  seen.disk_busy_seconds = 10;
  seen.disk_rate_profiled = 2e9;
  const PredictionReport report = ExplainDifference(50, 100, seen);
  EXPECT_EQ(report.cause, DifferenceCause::kDiskRate);
  EXPECT_NEAR(report.explained_ms, 50, 1e-9);
  EXPECT_EQ(report.sentence, "predicted 50 % too low: the disk read at 1.00 GB/s (the profile says 2.00 GB/s)");
}

TEST(PredictionTest, AFastDiskExplainsAFastRunOnly) {
  PredictionObservations seen = Quiet();
  seen.disk_bytes = 100 * 100e6;
  seen.disk_busy_seconds = 7.5;  // 25 ms less for every step
  seen.disk_rate_profiled = 1e9;
  EXPECT_EQ(ExplainDifference(100, 75, seen).cause, DifferenceCause::kDiskRate);
  EXPECT_THAT(ExplainDifference(100, 75, seen).sentence, HasSubstr("predicted 33 % too high"));
  EXPECT_EQ(ExplainDifference(100, 150, seen).cause, DifferenceCause::kUnknown);
}

// Profiled 20 ms of reading behind 100 ms of computing; 90 ms still hide there.
TEST(PredictionTest, ASlowDiskThatStillHidesBehindComputingExplainsNothing) {
  PredictionObservations seen = Quiet();
  seen.disk_bytes = 100 * 20e6;
  seen.disk_busy_seconds = 9;
  seen.disk_rate_profiled = 1e9;
  EXPECT_EQ(ExplainDifference(100, 150, seen).cause, DifferenceCause::kUnknown);
}

TEST(PredictionTest, WeightsThatWereShedAreCounted) {
  PredictionObservations seen = Quiet();
  seen.shed_bytes_per_step = 64.0 * kMiB;
  seen.disk_rate_profiled = 1e9;
  const PredictionReport report = ExplainDifference(100, 170, seen);
  EXPECT_EQ(report.cause, DifferenceCause::kMemoryShed);
  EXPECT_NEAR(report.explained_ms, 67.1, 0.1);
  EXPECT_THAT(report.sentence, HasSubstr("64.00 MiB of weights were evicted"));
}

// Of 20 s that two threads could have had, others took 8 s: 40 % of every step.
TEST(PredictionTest, CpuThatOthersUsedIsNamedWithItsShare) {
  PredictionObservations seen = Quiet();
  seen.other_seconds = 7;
  seen.stolen_seconds = 1;
  const PredictionReport report = ExplainDifference(100, 150, seen);
  EXPECT_EQ(report.cause, DifferenceCause::kCpuLost);
  EXPECT_NEAR(report.explained_ms, 60, 1e-9);
  EXPECT_THAT(report.sentence, HasSubstr("other processes used 35 % and the hypervisor 5 % of the time that 2 threads need"));
}

TEST(PredictionTest, OthersOnCoresThatWeDoNotUseCostNothing) {
  PredictionObservations seen = Quiet();
  seen.cores = 4;
  seen.other_seconds = 20;  // two cores, all the time
  EXPECT_EQ(ExplainDifference(100, 150, seen).cause, DifferenceCause::kUnknown);
}

TEST(PredictionTest, SlowMemoryIsNamedWithBothRates) {
  PredictionObservations seen = Quiet();
  seen.memory_rate = 10e9;
  seen.memory_rate_profiled = 16e9;
  const PredictionReport report = ExplainDifference(100, 155, seen);
  EXPECT_EQ(report.cause, DifferenceCause::kMemoryRate);
  EXPECT_THAT(report.sentence, HasSubstr("memory now reads at 10.00 GB/s (the profile says 16.00 GB/s)"));
}

TEST(PredictionTest, TheLargestOfSeveralCausesIsNamed) {
  PredictionObservations seen = Quiet();
  seen.memory_rate = 15e9;
  seen.memory_rate_profiled = 16e9;  // 6.7 ms
  seen.other_seconds = 6;            // 45 ms
  EXPECT_EQ(ExplainDifference(100, 150, seen).cause, DifferenceCause::kCpuLost);
}

TEST(PredictionTest, TextAndErrorAreOneNumber) {
  const PredictionReport low = ExplainDifference(100, 200, Quiet()), high = ExplainDifference(400, 100, Quiet());
  EXPECT_NEAR(low.error, -0.5, 1e-12);
  EXPECT_THAT(low.sentence, HasSubstr("50 % too low"));
  EXPECT_NEAR(high.error, 3, 1e-12);
  EXPECT_THAT(high.sentence, HasSubstr("300 % too high"));
}

TEST(PredictionTest, FewStepsAndShortOnesAreNotJudged) {
  PredictionObservations two = Quiet();
  two.steps = 2;
  PredictionObservations brief = Quiet();
  brief.decode_seconds = 0.2;
  for (const PredictionObservations& seen : {two, brief}) {
    const PredictionReport report = ExplainDifference(1, 18, seen);
    EXPECT_EQ(report.cause, DifferenceCause::kTooShort);
    EXPECT_FALSE(report.Differs());
    EXPECT_EQ(report.error, 0);
  }
}

// Three steps of seven seconds each are enough where they are alike.
TEST(PredictionTest, HowManyStepsAreEnoughDependsOnWhatTheyVaryBy) {
  PredictionObservations seen = Quiet();
  seen.steps = 3, seen.decode_seconds = 21, seen.step_deviation_ms = 70;
  EXPECT_TRUE(CanJudge(1400, 7000, seen));
  EXPECT_FALSE(CanJudge(6900, 7000, seen));
  seen.steps = 10, seen.decode_seconds = 0.5, seen.step_deviation_ms = 40;  // around 50
  EXPECT_FALSE(CanJudge(25, 50, seen));
  seen.steps = 100;
  EXPECT_TRUE(CanJudge(25, 50, seen));
}

TEST(PredictionTest, AProfileIsNamedOnlyWhereThereIsOne) {
  PredictionObservations seen = Quiet();
  seen.disk_bytes = 100 * 100e6;
  seen.disk_busy_seconds = 10;
  seen.disk_rate_profiled = 2e9;
  seen.disk_rate_source = RateSource::kAssumed;
  EXPECT_THAT(ExplainDifference(50, 100, seen).sentence, HasSubstr("1.00 GB/s (2.00 GB/s was assumed)"));
  seen.disk_rate_source = RateSource::kSeen;
  EXPECT_THAT(ExplainDifference(50, 100, seen).sentence, HasSubstr("1.00 GB/s (it was 2.00 GB/s when the run began)"));
}

TEST(PredictionTest, ACorrectionIsSaidWhereItIsMoreThanATenth) {
  EXPECT_EQ(CorrectionText({.source = RateSource::kAssumed, .planned = 1e9, .seen = 0.2e9}, 1400, 6900),
            "the disk reads at 200 MB/s (1.00 GB/s was assumed): 6900.0 ms a step are predicted instead of 1400.0");
  EXPECT_THAT(CorrectionText({.planned = 1e9, .seen = 0.2e9}, 1400, 1450), IsEmpty()) << "it hides behind computing";
  EXPECT_THAT(CorrectionText({.planned = 1e9, .seen = 0}, 1400, 6900), IsEmpty());
}

TEST(PredictionTest, WhatNothingExplainsIsSaidToBeSo) {
  PredictionObservations seen = Quiet();
  seen.other_seconds = 0.1;  // far too little
  EXPECT_EQ(ExplainDifference(100, 200, seen).cause, DifferenceCause::kUnknown);
  seen.compute_profiled = false;
  EXPECT_EQ(ExplainDifference(100, 200, seen).cause, DifferenceCause::kNotProfiled);
  EXPECT_THAT(ExplainDifference(100, 200, seen).sentence, HasSubstr("lime profile --model"));
}

}  // namespace
}  // namespace lime
