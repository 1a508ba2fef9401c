#include "planner/snapshot_choice.h"

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace lime {
namespace {

struct Made {
  Plan plan;
};

// A plan with so many snapshots, whose step takes `ms`.
Made Takes(double ms, int32_t snapshots, bool streams = true, int stages = 1) {
  Made made;
  made.plan.devices.resize(1);
  made.plan.parts = {{.block = {BlockKind::kLinearAttention, 0}, .streamed = streams}};
  made.plan.stages.assign(static_cast<size_t>(stages), {0, 0, 1});
  made.plan.state_snapshots = snapshots;
  made.plan.predicted.ms_per_step = ms;
  return made;
}

// What is chosen of the plans with 3 snapshots and with none, and which ones were made.
std::string Choose(const absl::StatusOr<Made>& with, const absl::StatusOr<Made>& without) {
  std::string made;
  const absl::StatusOr<Made> chosen = ChooseSnapshots(3, [&](int32_t snapshots) {
    made += std::to_string(snapshots) + " ";
    return snapshots == 3 ? with : without;
  });
  return made + (chosen.ok() ? "-> " + std::to_string(chosen->plan.state_snapshots) : std::string(chosen.status().message()));
}

TEST(SnapshotChoiceTest, SnapshotsMayMakeAStepATenthLonger) {
  EXPECT_EQ(Choose(Takes(109, 3), Takes(100, 0)), "3 0 -> 3");
  EXPECT_EQ(Choose(Takes(111, 3), Takes(100, 0)), "3 0 -> 0");
  EXPECT_EQ(Choose(Takes(200, 3, /*streams=*/false), Takes(100, 0)), "3 -> 3") << "all of it is in memory";
  EXPECT_EQ(Choose(Takes(200, 3, /*streams=*/false, /*stages=*/2), Takes(100, 0)), "3 0 -> 0") << "fewer devices may be faster";
}

TEST(SnapshotChoiceTest, WithoutAPlanForSnapshotsThereAreNone) {
  EXPECT_EQ(Choose(absl::ResourceExhaustedError("no room"), Takes(100, 0)), "3 0 -> 0");
  EXPECT_EQ(Choose(absl::FailedPreconditionError("blocks are missing"), Takes(100, 0)), "3 0 -> 0");
  EXPECT_EQ(Choose(absl::ResourceExhaustedError("no room"), absl::ResourceExhaustedError("none at all")), "3 0 no room");
  EXPECT_EQ(Choose(absl::CancelledError("interrupted"), Takes(100, 0)), "3 interrupted");
  EXPECT_EQ(Choose(Takes(200, 3), absl::ResourceExhaustedError("no room")), "3 0 -> 3");
}

}  // namespace
}  // namespace lime
