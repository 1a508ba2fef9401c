#include "coordinator/cluster_view/device_history.h"

#include "gtest/gtest.h"

namespace lime {
namespace {

constexpr absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

DeviceStatistics Work(int64_t epoch, int64_t steps, Bytes read, Bytes sent) {
  return {.epoch = epoch,
          .steps = steps,
          .bytes_read = read,
          .compute_ms = 10.0 * static_cast<double>(steps),
          .wait_weights_ms = 4.0 * static_cast<double>(steps),
          .traffic = {{"b", sent, 0}}};
}

TEST(DeviceHistoryTest, TotalsGoOnOverPlansThatBeginFromZero) {
  DeviceHistory history;
  history.Add(Work(1, 100, 1000, 50), At(0));
  history.Add(Work(1, 200, 3000, 70), At(1));
  history.Add(Work(2, 10, 100, 5), At(2));
  history.Add(Work(-1, 0, 0, 0), At(3));
  history.Add(Work(3, 1, 1, 1), At(4));
  EXPECT_EQ(history.totals().disk_read, 3101);
  EXPECT_DOUBLE_EQ(history.totals().wait_weights_seconds, 0.844);
  EXPECT_DOUBLE_EQ(history.totals().compute_seconds, 2.11);
  EXPECT_EQ(history.sent_to("b"), 76);
  EXPECT_EQ(history.sent_to("c"), 0);
}

TEST(DeviceHistoryTest, ExpertsAreCountedOverPlans) {
  DeviceHistory history;
  history.Add({.epoch = 1, .steps = 1, .unit_hits = 10, .unit_misses = 4, .unit_bytes = 400}, At(0));
  history.Add({.epoch = 1, .steps = 2, .unit_hits = 16, .unit_misses = 5, .unit_bytes = 500}, At(1));
  history.Add({.epoch = 2, .steps = 1, .unit_hits = 3, .unit_misses = 2, .unit_bytes = 200}, At(2));
  EXPECT_EQ(history.totals().unit_hits, 19);
  EXPECT_EQ(history.totals().unit_misses, 7);
  EXPECT_EQ(history.totals().unit_bytes, 700);
}

TEST(DeviceHistoryTest, ADaemonThatStartedAgainBeginsFromZeroToo) {
  DeviceHistory history;
  history.Add(Work(1, 100, 1000, 50), At(0));
  history.Add(Work(1, 10, 100, 5), At(1));
  EXPECT_EQ(history.totals().disk_read, 1100);
  EXPECT_EQ(history.sent_to("b"), 55);
}

TEST(DeviceHistoryTest, TheRateOfTheDiskIsThatOfTheLastAnswersUnderOnePlan) {
  DeviceHistory history;
  EXPECT_EQ(history.disk_bytes_per_second(), std::nullopt);
  history.Add(Work(1, 1, 1'000'000, 0), At(0));
  EXPECT_EQ(history.disk_bytes_per_second(), std::nullopt);
  history.Add(Work(1, 2, 1'000'500, 0), At(0.5));
  EXPECT_DOUBLE_EQ(*history.disk_bytes_per_second(), 1000);
  for (int i = 0; i < 8; ++i) history.Add(Work(1, 3 + i, 1'001'000 + 100 * i, 0), At(1 + 0.5 * i));
  EXPECT_DOUBLE_EQ(*history.disk_bytes_per_second(), 200) << "what was before is forgotten";
  history.Add(Work(2, 1, 5, 0), At(6));
  EXPECT_EQ(history.disk_bytes_per_second(), std::nullopt);
}

}  // namespace
}  // namespace lime
