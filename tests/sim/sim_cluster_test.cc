// The simulated cluster, by seed; and that it finds what it is there to find.
#include "tests/sim/sim_cluster.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cases.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

TEST(SimClusterTest, MoreThanAThousandSeedsHoldWhateverHappens) {
  SimResult all;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(1250, 5000)); ++seed) {
    const SimResult result = RunSim(SimRun(seed));
    ASSERT_EQ(result.violation, "") << "lime_sim --seed " << seed;
    for (size_t f = 0; f < all.faults.size(); ++f) all.faults[f] += result.faults[f];
    all.tokens += result.tokens, all.recoveries += result.recoveries;
    all.plan_changes += result.plan_changes, all.taken_over += result.taken_over, all.not_taken_over += result.not_taken_over;
    all.kept += result.kept, all.continued += result.continued, all.copied += result.copied;
    all.kept_by_all += result.kept_by_all, all.rolled_back += result.rolled_back;
  }
  EXPECT_GT(all.kept_by_all, 10) << "requests that continued with their KV after a failure";
  EXPECT_GT(all.rolled_back, 100);
  if (!ManyCases()) return;
  for (int f = 0; f < kNumSimFaults; ++f) EXPECT_GT(all.faults[static_cast<size_t>(f)], 50) << SimFaultName(static_cast<SimFault>(f));
  EXPECT_GT(all.tokens, 20'000);
  EXPECT_GT(all.recoveries, 100);
  EXPECT_GT(all.plan_changes, 100);
  EXPECT_GT(all.taken_over, 50);
  EXPECT_GT(all.not_taken_over, 5);
  EXPECT_GT(all.kept, 200);
  EXPECT_GT(all.continued, 50);
  EXPECT_GT(all.copied, 50);
}

// Their sequences share KV where a snapshot of the states was taken.
TEST(SimClusterTest, HybridModelsHoldWhateverHappens) {
  SimResult all;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(400, 2000)); ++seed) {
    const SimResult result = RunSim({.seed = seed, .shares_kv = seed % 2 == 0, .hybrid = true});
    ASSERT_EQ(result.violation, "") << "hybrid, seed " << seed;
    all.tokens += result.tokens, all.recoveries += result.recoveries, all.plan_changes += result.plan_changes;
    all.kept += result.kept, all.continued += result.continued, all.copied += result.copied;
    all.taken_over += result.taken_over;
    all.kept_by_all += result.kept_by_all, all.rolled_back += result.rolled_back;
  }
  EXPECT_GT(all.tokens, 0);
  EXPECT_GT(all.recoveries, 0);
  EXPECT_GT(all.plan_changes, 0);
  EXPECT_GT(all.kept_by_all, 5) << "from a snapshot";
  EXPECT_GT(all.rolled_back, 20) << "to a snapshot";
  if (!ManyCases()) return;
  EXPECT_GT(all.kept, 50);
  EXPECT_GT(all.continued, 10);
  EXPECT_GT(all.copied, 10);
  EXPECT_GT(all.taken_over, 10);
}

// Their plans load experts on demand, keep all of them or stream them.
TEST(SimClusterTest, ModelsWithExpertsHoldWhateverHappens) {
  SimResult all;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(300, 2000)); ++seed) {
    const SimResult result = RunSim({.seed = seed, .shares_kv = seed % 2 == 0, .experts = true});
    ASSERT_EQ(result.violation, "") << "experts, seed " << seed;
    all.tokens += result.tokens, all.recoveries += result.recoveries, all.plan_changes += result.plan_changes;
    all.taken_over += result.taken_over;
    all.places.freed += result.places.freed, all.places.freed_later += result.places.freed_later, all.places.made += result.places.made;
    all.hosted_units += result.hosted_units;
    all.ahead.used += result.ahead.used, all.ahead.used_for_others += result.ahead.used_for_others, all.ahead.wasted += result.ahead.wasted,
        all.ahead.cancelled += result.ahead.cancelled;
  }
  EXPECT_GT(all.tokens, 0);
  EXPECT_GT(all.hosted_units, 0) << "computed for other devices";
  if (!ManyCases()) return;
  EXPECT_GT(all.hosted_units, 1000);
  EXPECT_GT(all.ahead.used, 10) << "units that were read ahead";
  EXPECT_GT(all.ahead.used_for_others, 3);
  EXPECT_GT(all.ahead.wasted, 5);
  EXPECT_GT(all.ahead.cancelled, 5);
  EXPECT_GT(all.places.freed, 10) << "under pressure";
  EXPECT_GT(all.places.made, 10) << "after it";
  EXPECT_GT(all.recoveries, 0);
  EXPECT_GT(all.plan_changes, 0);
  EXPECT_GT(all.taken_over, 0);
}

// MLPs of their plans are sparse: they read neurons, or pieces of all rows, in the middle of a step.
TEST(SimClusterTest, ModelsWithSparseMlpsHoldWhateverHappens) {
  SimResult all;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(300, 2000)); ++seed) {
    const SimResult result = RunSim({.seed = seed, .shares_kv = seed % 2 == 0, .sparse = true});
    ASSERT_EQ(result.violation, "") << "sparse, seed " << seed;
    for (size_t f = 0; f < all.faults.size(); ++f) all.faults[f] += result.faults[f];
    all.tokens += result.tokens, all.recoveries += result.recoveries, all.plan_changes += result.plan_changes;
    all.taken_over += result.taken_over, all.rolled_back += result.rolled_back;
    all.neurons.computed += result.neurons.computed, all.neurons.read += result.neurons.read;
    all.neurons.repeated += result.neurons.repeated, all.neurons.pieces += result.neurons.pieces;
    all.neurons.copied += result.neurons.copied;
  }
  EXPECT_GT(all.tokens, 0);
  EXPECT_GT(all.neurons.read, 1000);
  EXPECT_GT(all.neurons.computed, all.neurons.read) << "no neuron stayed in memory";
  EXPECT_GT(all.neurons.pieces, 100) << "of prompts";
  if (!ManyCases()) return;
  EXPECT_GT(all.neurons.repeated, 100);
  EXPECT_GT(all.neurons.copied, 100);
  EXPECT_GT(all.recoveries, 10);
  EXPECT_GT(all.plan_changes, 10);
  EXPECT_GT(all.taken_over, 5);
  EXPECT_GT(all.rolled_back, 20);
  for (const SimFault fault : {SimFault::kDiskStall, SimFault::kDiskError, SimFault::kSlowDisk, SimFault::kPressure})
    EXPECT_GT(all.faults[static_cast<size_t>(fault)], 10) << SimFaultName(fault);
}

// Steps of prompts were ordered beside steps that decode, more than devices have room for: a hidden
// state was refused.
TEST(SimClusterTest, DevicesHaveRoomForTheHiddenStatesOfAllStepsUnderWay) {
  for (const uint64_t seed : {6589, 26010, 31860, 55063, 79462, 96327}) EXPECT_EQ(RunSim({.seed = seed}).violation, "") << seed;
}

// A device whose disk is full stops, and answers with that whatever its peers still send.
TEST(SimClusterTest, ADeviceThatHasStoppedRefusesNothing) {
  for (const uint64_t seed : {30724, 35914}) EXPECT_EQ(RunSim({.seed = seed}).violation, "") << seed;
}

// A disk that was full for a while failed two plans. Its device, the only one, counted as missing,
// although it answered.
TEST(SimClusterTest, ADiskThatIsFullForAWhileEndsNoRunOfOneDevice) {
  const SimResult result = RunSim({.seed = 106473});
  EXPECT_EQ(result.violation, "");
  EXPECT_FALSE(result.gave_up);
  EXPECT_EQ(result.outlived, 0);
  EXPECT_GE(result.recoveries, 2);
}

TEST(SimClusterTest, ASeedIsOneRun) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const SimResult one = RunSim({.seed = seed, .traces = true}), other = RunSim({.seed = seed, .traces = true});
    EXPECT_GT(one.transcript.size(), 1000U);
    EXPECT_EQ(one.transcript, other.transcript);
  }
}

struct Planted {
  const char* name;
  PlantedBug bug;
  const char* says;
};

class SimClusterPlantedTest : public ::testing::TestWithParam<Planted> {};

// What the first seed that finds it says. Nothing but the planted bug is found.
std::string Found(PlantedBug bug, bool faults) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const bool restores = bug == PlantedBug::kForgottenRestore;
    const bool hybrid =
        bug == PlantedBug::kForgottenState || bug == PlantedBug::kRepeatedRow || restores || bug == PlantedBug::kForgottenTakeover;
    const SimResult result = RunSim({.seed = seed,
                                     .bug = bug,
                                     .faults = faults || bug == PlantedBug::kForgottenTakeover,  // or no plan changes
                                     .shares_kv = bug == PlantedBug::kForgottenCopy || restores,
                                     .hybrid = hybrid,
                                     .experts = bug == PlantedBug::kForgottenUnit,
                                     .sparse = bug >= PlantedBug::kForgottenNeuron});
    if (result.violation.empty()) continue;
    EXPECT_TRUE(result.planted) << "seed " << seed;
    return result.violation;
  }
  return "";
}

TEST_P(SimClusterPlantedTest, IsFound) {
  EXPECT_THAT(Found(GetParam().bug, /*faults=*/false), HasSubstr(GetParam().says));
}

TEST_P(SimClusterPlantedTest, IsFoundAmongFaults) {
  EXPECT_THAT(Found(GetParam().bug, /*faults=*/true), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(Bugs, SimClusterPlantedTest,
                         ::testing::Values(Planted{"LostMessage", PlantedBug::kLostMessage, "requests wait"},
                                           Planted{"DoubleHolder", PlantedBug::kDoubleHolder, "has two holders"},
                                           Planted{"OverBudget", PlantedBug::kOverBudget, "over budget"},
                                           Planted{"ForgottenWait", PlantedBug::kForgottenWait, "requests wait"},
                                           Planted{"EndsEarly", PlantedBug::kEndsEarly, "ends for its length, where it goes on"},
                                           Planted{"EndsLate", PlantedBug::kEndsLate, "where it ends for its token"},
                                           Planted{"ForgottenEnd", PlantedBug::kForgottenEnd, "all requests are over, and on device"},
                                           Planted{"ForgottenCopy", PlantedBug::kForgottenCopy, "has token"},
                                           Planted{"ForgottenState", PlantedBug::kForgottenState, "has token"},
                                           Planted{"ForgottenRestore", PlantedBug::kForgottenRestore, "positions, the row is at"},
                                           Planted{"ForgottenTakeover", PlantedBug::kForgottenTakeover, "positions, the row is at"},
                                           Planted{"RepeatedRow", PlantedBug::kRepeatedRow, "positions, the row is at"},
                                           Planted{"ForgottenUnit", PlantedBug::kForgottenUnit, "requests wait"},
                                           Planted{"ForgottenNeuron", PlantedBug::kForgottenNeuron, "requests wait"},
                                           Planted{"StaleNeuron", PlantedBug::kStaleNeuron, "has token"},
                                           Planted{"WrongNeuron", PlantedBug::kWrongNeuron, "has token"},
                                           Planted{"WrongPiece", PlantedBug::kWrongPiece, "has piece"}),
                         [](const ::testing::TestParamInfo<Planted>& planted) { return std::string(planted.param.name); });

}  // namespace
}  // namespace lime
