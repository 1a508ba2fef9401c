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
std::string Choose(const absl::StatusOr<Made>& with, const absl::StatusOr<Made>& without, double most_longer = kWorthPrompts) {
  std::string made;
  const absl::StatusOr<Made> chosen = ChooseSnapshots({.count = 3, .most_longer = most_longer}, [&](int32_t snapshots) {
    made += std::to_string(snapshots) + " ";
    return snapshots == 3 ? with : without;
  });
  return made + (chosen.ok() ? "-> " + std::to_string(chosen->plan.state_snapshots) : std::string(chosen.status().message()));
}

TEST(SnapshotChoiceTest, SnapshotsForPromptsMayMakeAStepATenthLonger) {
  EXPECT_EQ(Choose(Takes(109, 3), Takes(100, 0)), "3 0 -> 3");
  EXPECT_EQ(Choose(Takes(111, 3), Takes(100, 0)), "3 0 -> 0");
  EXPECT_EQ(Choose(Takes(200, 3, /*streams=*/false), Takes(100, 0)), "3 -> 3") << "all of it is in memory";
  EXPECT_EQ(Choose(Takes(200, 3, /*streams=*/false, /*stages=*/2), Takes(100, 0)), "3 0 -> 0") << "fewer devices may be faster";
}

TEST(SnapshotChoiceTest, SnapshotsForFailuresAloneMakeAStepNoLonger) {
  EXPECT_EQ(Choose(Takes(100.5, 3), Takes(100, 0), kWorthFailures), "3 0 -> 3");
  EXPECT_EQ(Choose(Takes(102, 3), Takes(100, 0), kWorthFailures), "3 0 -> 0");
}

TEST(SnapshotChoiceTest, ThereAreSnapshotsWhereTheyCanBeUsed) {
  ModelConfig config;
  config.layers.resize(2);
  const auto count = [&](bool prompts, bool failures) { return SnapshotsFor(config, {.prompts = prompts, .failures = failures}).count; };
  EXPECT_EQ(count(true, true), 0) << "KV can be cut anywhere";
  config.layers[0].window = 64;
  EXPECT_EQ(count(true, false), 2);
  EXPECT_EQ(count(false, true), 0) << "after a failure a request goes on with the window it has";
  config.layers[0] = {.attention = AttentionKind::kLinear};
  EXPECT_EQ(count(true, false), 3);
  EXPECT_EQ(count(false, true), 3);
  EXPECT_EQ(count(false, false), 0);
  EXPECT_EQ(SnapshotsFor(config, {.prompts = true, .failures = true}).most_longer, kWorthPrompts);
  EXPECT_EQ(SnapshotsFor(config, {.failures = true}).most_longer, kWorthFailures);
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
