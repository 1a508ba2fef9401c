// Orders of bundles: against the words of neuron_path.h with plain sets, and for what they are made.
#include "planner/demand/neuron_path.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/random.h"
#include "planner/demand/bundle_reads.h"
#include "tests/cases.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> PlainPath(const std::vector<std::vector<int32_t>>& masks, int32_t neurons) {
  std::vector<std::set<size_t>> steps(static_cast<size_t>(neurons));
  for (size_t step = 0; step < masks.size(); ++step) {
    for (const int32_t neuron : masks[step]) steps[static_cast<size_t>(neuron)].insert(step);
  }
  std::vector<int32_t> path;
  std::set<int32_t> left;
  for (int32_t neuron = 0; neuron < neurons; ++neuron) left.insert(neuron);
  while (!left.empty()) {
    int32_t best = *left.begin();
    double best_index = -1;
    for (const int32_t neuron : left) {
      double index = 0;
      if (!path.empty()) {
        const std::set<size_t>&a = steps[static_cast<size_t>(path.back())], &b = steps[static_cast<size_t>(neuron)];
        const auto both = std::ranges::count_if(a, [&b](size_t step) { return b.contains(step); });
        if (both > 0) index = static_cast<double>(both) / static_cast<double>(std::ssize(a) + std::ssize(b) - both);
      }
      // Without a common step, by use: far below every index.
      if (index == 0) index = 1e-9 * static_cast<double>(steps[static_cast<size_t>(neuron)].size());
      if (index > best_index) best = neuron, best_index = index;
    }
    path.push_back(best);
    left.erase(best);
  }
  std::vector<int32_t> places(static_cast<size_t>(neurons));
  for (size_t place = 0; place < path.size(); ++place) places[static_cast<size_t>(path[place])] = static_cast<int32_t>(place);
  return places;
}

TEST(NeuronPathTest, IsTheGreedyPath) {
  for (int seed = 0; seed < Cases(60, 1000); ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<uint64_t>(seed));
    const int32_t neurons = 1 + random.Below(30);
    std::vector<std::vector<int32_t>> masks(static_cast<size_t>(random.Below(20)));
    for (std::vector<int32_t>& mask : masks) {
      for (int32_t neuron = 0; neuron < neurons; ++neuron) {
        if (random.Chance(20)) mask.push_back(neuron);
      }
    }
    ASSERT_EQ(PathPlaces(masks, neurons).value(), PlainPath(masks, neurons));
  }
}

// Groups of four whose members are 16 apart.
TEST(NeuronPathTest, BringsSeveralNeuronsWithARead) {
  Random random(4);
  std::vector<std::vector<int32_t>> masks(200);
  for (std::vector<int32_t>& mask : masks) {
    for (int32_t neuron = 0; neuron < 64; ++neuron) {
      if (neuron < 16 ? random.Chance(20) : std::ranges::count(mask, neuron % 16) > 0) mask.push_back(neuron);
    }
  }
  std::vector<int32_t> as_is(64);
  std::iota(as_is.begin(), as_is.end(), 0);
  const auto neurons_per_read = [&](const std::vector<int32_t>& places) {
    double neurons = 0, reads = 0;
    for (const std::vector<int32_t>& mask : masks) {
      std::vector<int32_t> wanted;
      for (const int32_t neuron : mask) wanted.push_back(places[static_cast<size_t>(neuron)]);
      std::ranges::sort(wanted);
      std::vector<BundleRead> joined;
      JoinReads(wanted, {.bundle_bytes = 4096, .longest_bytes = 1 << 20}, joined);
      neurons += static_cast<double>(wanted.size()), reads += static_cast<double>(joined.size());
    }
    return neurons / reads;
  };
  EXPECT_LT(neurons_per_read(as_is), 1.5);
  EXPECT_GE(neurons_per_read(PathPlaces(masks, 64).value()), 4);
}

TEST(NeuronPathTest, MasksOfAnotherLayerAreRefused) {
  const std::vector<std::vector<int32_t>> masks = {{1, 5}};
  EXPECT_THAT(std::string(PathPlaces(masks, 5).status().message()), HasSubstr("unit 5"));
  EXPECT_THAT(std::string(PathPlaces(masks, 0).status().message()), HasSubstr("0 neurons"));
}

}  // namespace
}  // namespace lime
