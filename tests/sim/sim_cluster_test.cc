// The simulated cluster, by seed; and that it finds what it is there to find.
#include "tests/sim/sim_cluster.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

TEST(SimClusterTest, AThousandSeedsHoldWhateverHappens) {
  SimResult all;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const SimResult result = RunSim({.seed = seed});
    ASSERT_EQ(result.violation, "") << "lime_sim --seed " << seed;
    for (size_t f = 0; f < all.faults.size(); ++f) all.faults[f] += result.faults[f];
    all.tokens += result.tokens, all.recoveries += result.recoveries, all.taken_over += result.taken_over;
  }
  for (int f = 0; f < kNumSimFaults; ++f) EXPECT_GT(all.faults[static_cast<size_t>(f)], 50) << SimFaultName(static_cast<SimFault>(f));
  EXPECT_GT(all.tokens, 20'000);
  EXPECT_GT(all.recoveries, 100);
  EXPECT_GT(all.taken_over, 20);
}

// Steps of prompts were ordered beside steps that decode, more than devices have room for: a hidden state was refused.
TEST(SimClusterTest, DevicesHaveRoomForTheHiddenStatesOfAllStepsUnderWay) {
  for (const uint64_t seed : {6589, 26010, 31860, 55063, 79462, 96327}) EXPECT_EQ(RunSim({.seed = seed}).violation, "") << seed;
}

// A device whose disk is full stops, and answers with that whatever its peers still send.
TEST(SimClusterTest, ADeviceThatHasStoppedRefusesNothing) {
  for (const uint64_t seed : {30724, 35914}) EXPECT_EQ(RunSim({.seed = seed}).violation, "") << seed;
}

TEST(SimClusterTest, ASeedIsOneRun) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const SimResult one = RunSim({.seed = seed, .traces = true}), other = RunSim({.seed = seed, .traces = true});
    EXPECT_GT(one.transcript.size(), 1000U);
    EXPECT_EQ(one.transcript, other.transcript);
  }
}

// The first seed that finds it, without faults in its way; what it says.
std::string Found(PlantedBug bug) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const SimResult result = RunSim({.seed = seed, .bug = bug, .faults = false});
    if (!result.violation.empty()) return result.violation;
  }
  return "";
}

TEST(SimClusterTest, ALostMessageIsFound) {
  EXPECT_THAT(Found(PlantedBug::kLostMessage), HasSubstr("requests wait"));
}

TEST(SimClusterTest, APageWithTwoHoldersIsFound) {
  EXPECT_THAT(Found(PlantedBug::kDoubleHolder), HasSubstr("has two holders"));
}

TEST(SimClusterTest, MemoryOverItsBudgetIsFound) {
  EXPECT_THAT(Found(PlantedBug::kOverBudget), HasSubstr("over budget"));
}

TEST(SimClusterTest, AForgottenWaitIsFound) {
  EXPECT_THAT(Found(PlantedBug::kForgottenWait), HasSubstr("requests wait"));
}

TEST(SimClusterTest, ARequestThatEndsTooEarlyIsFound) {
  EXPECT_THAT(Found(PlantedBug::kEndsEarly), HasSubstr("ends for its length, where it goes on"));
}

TEST(SimClusterTest, ARequestThatGoesOnBehindItsEndTokenIsFound) {
  EXPECT_THAT(Found(PlantedBug::kEndsLate), HasSubstr("where it ends for its token"));
}

}  // namespace
}  // namespace lime
