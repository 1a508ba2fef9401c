#include "coordinator/logic/cluster_rates.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// On a two parts of 2 MB stream, at 1 MB/ms and 0.5 ms each; on b nothing does.
Plan SmallPlan() {
  Plan plan;
  plan.epoch = 3;
  plan.devices = {{.name = "a", .disk_mb_per_ms = 1, .disk_lat_ms = 0.5}, {.name = "b", .disk_mb_per_ms = 1}};
  plan.parts = {{.bytes = 2'000'000, .streamed = true}, {.bytes = 5'000'000}, {.bytes = 2'000'000, .streamed = true}, {.bytes = 1}};
  plan.stages = {{.device = 0, .lo = 0, .hi = 3}, {.device = 1, .lo = 3, .hi = 4}};
  return plan;
}

ClusterRates Rates(RateMeter& meter, const std::string& device, const DeviceStatistics& work) {
  ClusterRates rates;
  meter.Add(SmallPlan(), device, work, rates);
  return rates;
}

TEST(ClusterRatesTest, RatesAreOfTheTimeSinceTheAnswerBefore) {
  RateMeter meter;
  EXPECT_THAT(Rates(meter, "a", {.epoch = 3, .decode_ms = 1000, .planned_decode_ms = 10, .disk_ms = 1000, .disk_bytes = 100}), IsEmpty());
  // 400 MB are planned to take 500 ms.
  EXPECT_THAT(Rates(meter, "a", {.epoch = 3, .decode_ms = 1200, .planned_decode_ms = 310, .disk_ms = 2000, .disk_bytes = 400'000'100}),
              ElementsAre(Pair(DiskKey("a"), DoubleNear(0.5, 1e-9)), Pair(ComputeKey("a"), DoubleNear(1.5, 1e-9))));
  EXPECT_THAT(Rates(meter, "b", {.epoch = 3}), IsEmpty());
  EXPECT_THAT(Rates(meter, "b", {.epoch = 3, .decode_ms = 200, .planned_decode_ms = 100, .disk_ms = 500, .disk_bytes = 9}),
              ElementsAre(Pair(ComputeKey("b"), 0.5)));
}

// A micro-batch is expected to read 1.5 units of 1 MB, with 0.5 ms each.
TEST(ClusterRatesTest, ReadsOnDemandArePlannedWithWhatStreams) {
  Plan plan = SmallPlan();
  EXPECT_DOUBLE_EQ(PlannedLoadMs(plan, "a", 8'000'000), 10);
  plan.microbatches = 2;
  PlanPart& part = plan.parts[1];
  part.unit_bytes = 1'000'000, part.places = 2, part.chosen_units = 3, part.hit_share = 0.5;
  EXPECT_DOUBLE_EQ(PlannedLoadMs(plan, "a", 7'000'000), 4 + 1 + 2 * 1.5 * 1.5);
  plan.parts[0].streamed = plan.parts[2].streamed = false;
  EXPECT_DOUBLE_EQ(PlannedLoadMs(plan, "a", 3'000'000), 2 * 1.5 * 1.5);
  part.hit_share = 1;
  EXPECT_EQ(PlannedLoadMs(plan, "a", 3'000'000), 0);
}

TEST(ClusterRatesTest, TooLittleWorkMeasuresNothingUntilItAddsUp) {
  RateMeter meter;
  (void)Rates(meter, "b", {.epoch = 3});
  EXPECT_THAT(Rates(meter, "b", {.epoch = 3, .decode_ms = 60, .planned_decode_ms = 60}), IsEmpty());
  EXPECT_THAT(Rates(meter, "b", {.epoch = 3, .decode_ms = 120, .planned_decode_ms = 60}), ElementsAre(Pair(ComputeKey("b"), 0.5)));
  EXPECT_THAT(Rates(meter, "b", {.epoch = 3, .decode_ms = 130, .planned_decode_ms = 90}), IsEmpty());
}

TEST(ClusterRatesTest, AnotherPlanBeginsAnew) {
  RateMeter meter;
  (void)Rates(meter, "b", {.epoch = 2, .decode_ms = 1000, .planned_decode_ms = 1000});
  EXPECT_THAT(Rates(meter, "b", {.epoch = 2, .decode_ms = 2000, .planned_decode_ms = 1000}), IsEmpty()) << "of a plan that is gone";
  EXPECT_THAT(Rates(meter, "b", {.epoch = 3, .decode_ms = 500, .planned_decode_ms = 500}), IsEmpty());
  EXPECT_THAT(Rates(meter, "b", {.epoch = 3, .decode_ms = 700, .planned_decode_ms = 600}), ElementsAre(Pair(ComputeKey("b"), 0.5)));
}

TEST(ClusterRatesTest, ChangesHaveUnits) {
  EXPECT_EQ(DescribeRates(LinkKey("a", "b"), 12.5e6, 2.5e6), "link a -> b: 100 -> 20 Mbit/s");
  EXPECT_EQ(DescribeRates(DiskKey("a"), 1, 0.25), "disk of a: 1 -> 0.25 times its profile");
  EXPECT_EQ(DescribeRates(ComputeKey("a"), 1, 2), "computing of a: 1 -> 2 times its profile");
}

}  // namespace
}  // namespace lime
