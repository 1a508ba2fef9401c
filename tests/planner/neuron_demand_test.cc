// What a step is expected to read of a sparse MLP.
#include "planner/problem/neuron_demand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <vector>

#include "planner/base/random.h"
#include "planner/demand/mask_window.h"
#include "planner/plan/sparse_parts.h"
#include "tests/planner/made_calibration.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

constexpr int64_t kDemandHidden = 2048, kDemandInner = 8192;

// Gated, in bf16: bundles of 12 KiB, whose last 8 KiB are read.
ModelSpec DemandModel() {
  ModelSpec spec = *DescribeModel(LlamaConfig(/*layers=*/2, kDemandHidden, kDemandInner, /*vocab=*/4000), "relu");
  spec.config.activation = Activation::kRelu;
  return spec;
}

class NeuronDemandTest : public ::testing::Test {
 protected:
  NeuronDemand Of(int64_t rows, int64_t masks = 100, int64_t batch = 1) const {
    const NeuronPlace place{.calibration = &layer_, .rows = rows, .masks = masks};
    return DemandOfNeurons(spec_.block({BlockKind::kMlp, 0}), place, batch, times_);
  }

  const ModelSpec spec_ = DemandModel();
  const LayerCalibration layer_ = MadeLayer(0, kDemandInner, 0.05);
  NeuronTimes times_{.dense_ms = 4,
                     .call_ms = 0.02,
                     .burst = {.burst_ms = 0.1, .read_ms = 0.0084, .bytes_per_ms = 1.33e6},
                     .sequential_bytes_per_ms = 2e6};
};

TEST_F(NeuronDemandTest, MoreMemoryReadsLessAndTakesLessTime) {
  double loads = std::numeric_limits<double>::infinity(), io_ms = loads, ms = loads;
  for (int64_t rows = 512; rows <= kDemandInner; rows += 512) {
    const NeuronDemand demand = Of(rows);
    EXPECT_NEAR(demand.active, 0.05 * kDemandInner, 1e-9);
    EXPECT_LT(demand.loads, loads);
    EXPECT_LT(demand.io_ms, io_ms);
    EXPECT_LE(demand.compute_ms + demand.wait_ms, ms) << "computing may hide all reads";
    EXPECT_LE(demand.wait_ms, demand.io_ms);
    loads = demand.loads, io_ms = demand.io_ms, ms = demand.compute_ms + demand.wait_ms;
  }
  EXPECT_EQ(loads, 0);
  EXPECT_EQ(io_ms, 0);
  EXPECT_NEAR(ms, 0.02 + 0.05 * 4, 1e-9) << "a call that computes the active neurons";
}

TEST_F(NeuronDemandTest, BytesAndTimesAreThoseOfTheReads) {
  const NeuronDemand demand = Of(kDemandInner / 2);
  const double loads = 0.05 * 0.125 * kDemandInner, reads = loads / 1.5;
  EXPECT_NEAR(demand.loads, loads, 1e-9);
  EXPECT_NEAR(demand.reads, reads, 1e-9);
  EXPECT_NEAR(demand.bytes, reads * (8192 + 0.5 * 12288), 1e-6) << "half a bundle lies beside the first one's end";
  EXPECT_NEAR(demand.io_ms, 0.1 + reads * (0.0084 + (8192 + 0.5 * 12288) / 1.33e6), 1e-3);
  const double held_ms = 0.02 + 4 * (demand.active - loads) / kDemandInner;
  EXPECT_NEAR(demand.wait_ms, demand.io_ms - held_ms, 1e-9) << "computing what is in memory hides reads";
  EXPECT_NEAR(demand.compute_ms, held_ms + 0.02 + 4 * loads / kDemandInner, 1e-9);
}

TEST_F(NeuronDemandTest, ShortWindowsAndLargeBatchesReadMore) {
  EXPECT_GT(Of(kDemandInner, /*masks=*/2).loads, 0) << "memory has room, but neurons leave after two tokens";
  EXPECT_GT(Of(kDemandInner, 1).loads, Of(kDemandInner, 4).loads);
  EXPECT_EQ(Of(kDemandInner, 8).loads, 0) << "nothing was measured of longer windows than memory has room for";
  double active = 0, loads = 0;
  for (const int64_t batch : {1, 2, 3, 8, 20}) {
    const NeuronDemand demand = Of(2048, 100, batch);
    EXPECT_GT(demand.active, active);
    EXPECT_GT(demand.loads, loads);
    EXPECT_LE(demand.loads, demand.active);
    EXPECT_LE(demand.active, kDemandInner);
    active = demand.active, loads = demand.loads;
  }
}

TEST_F(NeuronDemandTest, NoBurstTakesLongerThanReadingAllBundlesInARow) {
  times_.burst.read_ms = 10;
  EXPECT_NEAR(Of(512).io_ms, kDemandInner * 12288 / 2e6, 1e-6);
}

TEST_F(NeuronDemandTest, RareReadsCountWithTheirProbability) {
  const LayerCalibration rare = MadeLayer(0, kDemandInner, 1e-5);
  const NeuronPlace place{.calibration = &rare, .rows = 512, .masks = 100};
  const NeuronDemand demand = DemandOfNeurons(spec_.block({BlockKind::kMlp, 0}), place, 1, times_);
  ASSERT_LT(demand.reads, 0.1);
  EXPECT_NEAR(demand.io_ms, demand.reads * (0.1 + 0.0084 + (8192 + 0.5 * 12288) / 1.33e6), 1e-6);
}

TEST_F(NeuronDemandTest, BundlesByNumberAndThoseThatSharePagesAreReadOneByOne) {
  const BlockSpec& mlp = spec_.block({BlockKind::kMlp, 0});
  EXPECT_DOUBLE_EQ(NeuronsPerRead(mlp, {.calibration = &layer_}, 0.01), 1.5);
  EXPECT_NEAR(NeuronsPerRead(mlp, {.calibration = &layer_, .on_path = false}, 0.01), 1 / 0.99, 1e-9) << "neighbours by chance";
  EXPECT_DOUBLE_EQ(NeuronsPerRead(mlp, {.calibration = &layer_}, 1), 85) << "reads of at most 1 MiB";
  ModelSpec odd = *DescribeModel(LlamaConfig(2, /*hidden=*/1024, /*inner=*/2816, 4000), "relu");
  EXPECT_DOUBLE_EQ(NeuronsPerRead(odd.block({BlockKind::kMlp, 0}), {.calibration = &layer_}, 0.5), 1);
}

TEST_F(NeuronDemandTest, TheFirstStepsOfARunReadWhatMemoryDoesNotHaveYet) {
  NeuronPlace place{.calibration = &layer_, .rows = kDemandInner, .masks = 4096};
  const BlockSpec& mlp = spec_.block({BlockKind::kMlp, 0});
  const auto loads = [&](int64_t steps, int64_t copied, int64_t rows = kDemandInner) {
    place.steps = steps, place.copied_tokens = copied, place.rows = rows;
    return DemandOfNeurons(mlp, place, 1, times_).loads;
  };
  EXPECT_EQ(loads(0, 0), 0) << "in the long run";
  EXPECT_NEAR(loads(1, 0), 0.05 * kDemandInner, 1e-9) << "all that is active";
  double before = loads(1, 0), all = 0;
  for (const int64_t steps : {2, 8, 32, 128, 512, 2048}) {
    EXPECT_LT(loads(steps, 0), before) << steps;
    EXPECT_GT(loads(steps, 0) * static_cast<double>(steps), all) << steps;
    before = loads(steps, 0), all = before * static_cast<double>(steps);
    EXPECT_LE(all, 1.1 * kDemandInner) << "each neuron once";
    EXPECT_LT(loads(steps, 16), before) << "a prompt leaves neurons in memory";
  }
  EXPECT_NEAR(loads(1 << 20, 0, 1024), loads(0, 0, 1024), 0.1) << "a long run";
  EXPECT_GT(loads(10, 0, 1024), loads(0, 0, 1024));
  const NeuronDemand cold = (place.steps = 1, place.copied_tokens = 0, DemandOfNeurons(mlp, place, 1, times_));
  EXPECT_GT(cold.io_ms, 0);
  EXPECT_GT(cold.wait_ms, 0);
}

// Tokens that keep two thirds of the neurons of the one before, and take others, some much more often.
SequenceMasks WanderingMasks(int tokens, int32_t neurons, Random& random) {
  SequenceMasks masks;
  std::set<int32_t> active;
  for (int token = 0; token < tokens; ++token) {
    std::erase_if(active, [&](int32_t) { return random.Chance(33); });
    while (std::ssize(active) < neurons / 16) active.insert(static_cast<int32_t>(random.Uniform() * random.Uniform() * neurons));
    masks.emplace_back(active.begin(), active.end());
  }
  return masks;
}

TEST(RunDemandTest, WhatAWindowLoadsFromTheFirstTokenOnIsPredicted) {
  constexpr int32_t kFew = 1024;
  Random random(7);
  std::vector<SequenceMasks> sequences;
  for (int i = 0; i < 8; ++i) sequences.push_back(WanderingMasks(256, kFew, random));
  const LayerCalibration layer = CalibrateLayer(0, sequences, {.neurons = kFew, .masks = 8, .batches = {1}}).value();
  const ModelSpec spec = [] {
    ModelSpec relu = *DescribeModel(LlamaConfig(2, /*hidden=*/2048, kFew, 4000), "relu");
    relu.config.activation = Activation::kRelu;
    return relu;
  }();
  for (const int32_t rows : {kFew, kFew / 4, kFew / 8}) {
    for (const int copied : {0, 5}) {
      for (const int steps : {4, 24, 100}) {
        double loaded = 0;
        for (int run = 0; run < 40; ++run) {
          MaskWindow window({.neurons = kFew, .rows = rows, .masks = kMostWindowMasks});
          const SequenceMasks masks = WanderingMasks(10 + copied + steps, kFew, random);
          for (int token = 0; token < copied + steps; ++token) {
            ASSERT_TRUE(window.BeginStep(masks[static_cast<size_t>(10 + token)]).ok());
            while (window.NextRound()) loaded += token < copied ? 0 : static_cast<double>(window.coming().size());
          }
        }
        const NeuronPlace place{.calibration = &layer, .rows = rows, .masks = kMostWindowMasks, .steps = steps, .copied_tokens = copied};
        const double predicted =
            DemandOfNeurons(spec.block({BlockKind::kMlp, 0}), place, 1, {.burst = {.bytes_per_ms = 1e6}, .sequential_bytes_per_ms = 1e6})
                .loads;
        const double measured = loaded / (40.0 * steps);
        EXPECT_NEAR(predicted / measured, 1, 0.15) << rows << " rows, " << copied << " copied, " << steps << " steps: " << measured;
      }
    }
  }
}

TEST(BurstCostOfTest, IsTheLineThroughWhatWasMeasured) {
  DeviceProfile profile;
  EXPECT_FALSE(BurstCostOf(profile).has_value()) << "no disk";
  // 0.01 ms and 1 MB/ms for each of many reads; one alone takes 0.25 ms longer.
  std::vector<DiskPoint> points;
  for (const Bytes bytes : {64 * kKiB, kMiB}) {
    const double ms = 0.01 + static_cast<double>(bytes) / 1e6;
    points.push_back(
        {.read_bytes = bytes, .depth = 1, .bytes_per_second = static_cast<double>(bytes) / (ms + 0.25) * 1000, .latency_ms = ms + 0.25});
    points.push_back({.read_bytes = bytes, .depth = 32, .bytes_per_second = static_cast<double>(bytes) / ms * 1000, .latency_ms = 32 * ms});
  }
  profile.SetDisk(points);
  const BurstCost cost = BurstCostOf(profile).value();
  EXPECT_NEAR(cost.read_ms, 0.01, 1e-6);
  EXPECT_NEAR(cost.bytes_per_ms, 1e6, 1);
  EXPECT_NEAR(cost.burst_ms, 0.25, 1e-6);
  profile.SetDisk({{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 2e9, .latency_ms = 0.5}});
  const BurstCost assumed = BurstCostOf(profile).value();
  EXPECT_DOUBLE_EQ(assumed.bytes_per_ms, 2e6);
  EXPECT_GT(assumed.read_ms, 0) << "a small read is not free where none was measured";
  EXPECT_TRUE(CheckBurst(assumed).ok() && CheckBurst(cost).ok());
}

TEST(BurstCostOfTest, BurstsThatWereMeasuredCountBeforeRates) {
  DeviceProfile profile;
  profile.bursts = BurstCost{.burst_ms = 0.2, .read_ms = 0.03, .bytes_per_ms = 5e5};
  EXPECT_FALSE(BurstCostOf(profile).has_value()) << "a profile of a person's, without a disk";
  profile.SetDisk({{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 2e9, .latency_ms = 0.5}}, profile.bursts);
  EXPECT_TRUE(BurstCostOf(profile) == profile.bursts);
}

}  // namespace
}  // namespace lime
