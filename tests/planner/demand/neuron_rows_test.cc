#include "planner/demand/neuron_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "planner/base/random.h"

namespace lime {
namespace {

using ::testing::Each;
using ::testing::Ge;

// A token needs 8 of 64 neurons. Most of them are among `often` neurons, which change slowly.
LayerCalibration Layer(int32_t number, int often, uint64_t seed) {
  Random random(seed);
  std::vector<SequenceMasks> sequences(4);
  for (SequenceMasks& sequence : sequences) {
    for (int step = 0; step < 80; ++step) {
      std::vector<bool> active(64);
      for (int i = 0; i < 7; ++i) active[static_cast<size_t>(random.Below(often))] = true;
      active[static_cast<size_t>(random.Below(64))] = true;
      std::vector<int32_t>& mask = sequence.emplace_back();
      for (int32_t neuron = 0; neuron < 64; ++neuron) {
        if (active[static_cast<size_t>(neuron)]) mask.push_back(neuron);
      }
    }
  }
  return CalibrateLayer(number, sequences, {.neurons = 64, .masks = 5}).value();
}

TEST(NeuronRowsTest, MemoryGoesWhereItSavesMostAndMoreOfItReadsLess) {
  const LayerCalibration local = Layer(0, 12, 1), spread = Layer(1, 64, 2);
  const std::vector<SparseLayer> layers = {{&local, 4096}, {&spread, 4096}};
  double before = ExpectedNeuronBytes(layers, std::vector<int64_t>{0, 0}, 1);
  for (const int64_t rows : {24, 40, 64, 128}) {
    const auto divided = DivideNeuronRows(layers, 1, rows * 4096);
    ASSERT_TRUE(divided.ok()) << divided.status();
    EXPECT_LE(std::accumulate(divided->begin(), divided->end(), int64_t{0}), rows);
    const double bytes = ExpectedNeuronBytes(layers, *divided, 1);
    EXPECT_LT(bytes, before) << rows;
    before = bytes;
    const std::vector<int64_t> even = {rows / 2, rows / 2};
    EXPECT_LE(bytes, 1.1 * ExpectedNeuronBytes(layers, even, 1)) << "curves are concave ones around what was measured";
  }
  const auto few = DivideNeuronRows(layers, 1, 22 * 4096);
  EXPECT_GT((*few)[0], (*few)[1]) << "neurons of layer 0 return sooner";
}

TEST(NeuronRowsTest, EveryLayerHasRoomForAStepIfThereIsAny) {
  const LayerCalibration one = Layer(0, 12, 1), other = Layer(1, 64, 2);
  const std::vector<SparseLayer> layers = {{&one, 4096}, {&other, 4096}};
  EXPECT_THAT(*DivideNeuronRows(layers, 1, 18 * 4096), Each(Ge(6)));
  EXPECT_THAT(*DivideNeuronRows(layers, 1, 3 * 4096), Each(Ge(1))) << "a step then has rounds";
  EXPECT_TRUE(absl::IsResourceExhausted(DivideNeuronRows(layers, 1, 4096).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DivideNeuronRows(layers, 0, 1 << 20).status()));
}

// Loads fall by less and less: `drops` of the active share, by row.
LayerCalibration Convex(int32_t number, double active, const std::vector<double>& drops) {
  LayerCalibration layer{.layer = number, .neurons = static_cast<int32_t>(drops.size())};
  BatchShares shares{.active = active};
  double loads = active;
  for (int32_t row = 0; row < layer.neurons; ++row) {
    loads -= active * drops[static_cast<size_t>(row)];
    shares.points.push_back({.rows = row + 1, .loads = loads});
  }
  layer.batches = {shares};
  return layer;
}

TEST(NeuronRowsTest, NoOtherDivisionSavesMoreTime) {
  const LayerCalibration a = Convex(0, 0.1, {0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05});
  const LayerCalibration b = Convex(1, 0.12, {0.5, 0.2, 0.1, 0.1, 0.05, 0.05, 0, 0});
  const LayerCalibration c = Convex(2, 0.05, {0.6, 0.3, 0.1, 0, 0, 0, 0, 0});
  for (const double slow : {0.5, 1.0, 3.0}) {  // the time of a neuron of layer b
    const std::vector<SparseLayer> layers = {{&a, 4096}, {&b, 4096, slow}, {&c, 4096}};
    const auto ms_of = [&](const std::vector<int64_t>& rows) {
      double ms = 0;
      for (size_t i = 0; i < layers.size(); ++i) ms += LoadShare(*layers[i].calibration, rows[i], 1) * 8 * layers[i].read_ms;
      return ms;
    };
    for (int64_t budget = 3; budget <= 24; ++budget) {
      const auto divided = DivideNeuronRows(layers, 1, budget * 4096);
      ASSERT_TRUE(divided.ok()) << divided.status();
      double least = 1e9;
      for (int64_t i = 1; i <= 8; ++i) {
        for (int64_t j = 1; j <= 8; ++j) {
          for (int64_t k = 1; k <= 8; ++k) {
            if (i + j + k <= budget) least = std::min(least, ms_of({i, j, k}));
          }
        }
      }
      EXPECT_NEAR(ms_of(*divided), least, 1e-6) << budget << " rows, " << slow;
    }
  }
  EXPECT_TRUE(absl::IsInvalidArgument(DivideNeuronRows(std::vector<SparseLayer>{{&a, 4096, 0}}, 1, 1 << 20).status()));
}

TEST(NeuronRowsTest, LargerBatchesReadMore) {
  const LayerCalibration layer = Layer(0, 32, 3);
  const std::vector<SparseLayer> layers = {{&layer, 4096}};
  const std::vector<int64_t> rows = {20};
  EXPECT_LT(ExpectedNeuronBytes(layers, rows, 1), ExpectedNeuronBytes(layers, rows, 2));
  EXPECT_LT(ExpectedNeuronBytes(layers, rows, 2), ExpectedNeuronBytes(layers, rows, 4));
}

}  // namespace
}  // namespace lime
