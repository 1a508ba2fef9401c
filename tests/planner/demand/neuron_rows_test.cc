#include "planner/demand/neuron_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(NeuronRowsTest, LargerBatchesReadMore) {
  const LayerCalibration layer = Layer(0, 32, 3);
  const std::vector<SparseLayer> layers = {{&layer, 4096}};
  const std::vector<int64_t> rows = {20};
  EXPECT_LT(ExpectedNeuronBytes(layers, rows, 1), ExpectedNeuronBytes(layers, rows, 2));
  EXPECT_LT(ExpectedNeuronBytes(layers, rows, 2), ExpectedNeuronBytes(layers, rows, 4));
}

}  // namespace
}  // namespace lime
