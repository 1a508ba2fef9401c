// Friends of neurons: against the words of coactivation.h with plain sets, and what the paper finds of hot neurons.
#include "planner/demand/coactivation.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/random.h"
#include "tests/cases.h"

namespace lime {
namespace {

using ::testing::DoubleEq;
using ::testing::HasSubstr;

constexpr int32_t kNeurons = 24;

SequenceMasks RandomMasks(Random& random, int steps, int percent) {
  SequenceMasks masks(static_cast<size_t>(steps));
  for (std::vector<int32_t>& mask : masks) {
    for (int32_t neuron = 0; neuron < kNeurons; ++neuron) {
      if (random.Chance(percent)) mask.push_back(neuron);
    }
  }
  return masks;
}

// The steps of two neurons, as sets, and friends by full sorts.
struct PlainFriends {
  std::vector<std::set<std::pair<size_t, size_t>>> steps{kNeurons};

  explicit PlainFriends(const std::vector<SequenceMasks>& sequences) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      for (size_t step = 0; step < sequences[i].size(); ++step) {
        for (const int32_t neuron : sequences[i][step]) steps[static_cast<size_t>(neuron)].insert({i, step});
      }
    }
  }

  int64_t Uses(int32_t neuron) const { return std::ssize(steps[static_cast<size_t>(neuron)]); }

  int64_t Together(int32_t a, int32_t b) const {
    return std::ranges::count_if(steps[static_cast<size_t>(a)],
                                 [&](const auto& step) { return steps[static_cast<size_t>(b)].contains(step); });
  }

  std::vector<int32_t> Of(int32_t neuron) const {
    std::vector<int32_t> friends;
    for (int32_t other = 0; other < kNeurons; ++other) {
      if (other != neuron && Together(neuron, other) > 0) friends.push_back(other);
    }
    std::ranges::stable_sort(friends, [&](int32_t a, int32_t b) { return Together(neuron, a) > Together(neuron, b); });
    return friends;
  }

  // Of one sequence: bundles read, copies used, copies already there, all with a window of so many masks.
  struct Reads {
    int64_t steps = 0, loads = 0, bundles = 0, friends = 0, used = 0, already_there = 0;
  };
  // Memory has the neurons of so many masks before the step. Of the oldest of these, those leave that the step does not have.
  void Replay(const SequenceMasks& masks, size_t window, Reads& reads) const {
    for (size_t step = masks.size() / 2; step < masks.size(); ++step) {
      const std::set<int32_t> wanted(masks[step].begin(), masks[step].end());
      std::set<int32_t> held;
      for (size_t before = step - std::min(step, window); before < step; ++before) {
        for (const int32_t neuron : masks[before]) {
          if (before + window > step || wanted.contains(neuron)) held.insert(neuron);
        }
      }
      std::set<int32_t> come;
      ++reads.steps;
      for (const int32_t neuron : wanted) {
        if (held.contains(neuron)) continue;
        ++reads.loads;
        if (!come.insert(neuron).second) continue;
        ++reads.bundles;
        const std::vector<int32_t> friends = Of(neuron);
        if (friends.empty()) continue;
        ++reads.friends;
        const bool had_come = !come.insert(friends[0]).second;
        const bool was_there = had_come || held.contains(friends[0]);
        reads.already_there += was_there ? 1 : 0;
        reads.used += !was_there && wanted.contains(friends[0]) ? 1 : 0;
      }
    }
  }
};

TEST(CoactivationTest, IsWhatPlainSetsCount) {
  for (int seed = 0; seed < Cases(40, 400); ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<uint64_t>(seed));
    const std::vector<SequenceMasks> sequences = {RandomMasks(random, 2 + random.Below(30), 25), RandomMasks(random, random.Below(20), 15)};
    const int32_t window = 1 + random.Below(6);
    const Coactivation found = MeasureCoactivation(sequences, {.neurons = kNeurons, .masks = window}).value();
    const PlainFriends plain(sequences);
    EXPECT_EQ(found.steps, std::ssize(sequences[0]) + std::ssize(sequences[1]));
    for (const FriendRank& rank : found.ranks) {
      std::vector<int64_t> neurons(101);
      for (int32_t neuron = 0; neuron < kNeurons; ++neuron) {
        const std::vector<int32_t> friends = plain.Of(neuron);
        if (plain.Uses(neuron) < kLeastFriendUses) continue;
        const int64_t together = std::ssize(friends) < rank.rank ? 0 : plain.Together(neuron, friends[static_cast<size_t>(rank.rank - 1)]);
        ++neurons[static_cast<size_t>(100 * together / plain.Uses(neuron))];
      }
      EXPECT_EQ(rank.neurons, neurons) << rank.rank;
    }
    std::set<int32_t> closest;
    for (int32_t neuron = 0; neuron < kNeurons; ++neuron) {
      if (const std::vector<int32_t> friends = plain.Of(neuron); !friends.empty()) closest.insert(friends[0]);
    }
    EXPECT_EQ(found.closest_friends, std::ssize(closest));
    const std::vector<int32_t> of_one = plain.Of(found.neuron);
    ASSERT_EQ(found.with_neuron.size(), of_one.size());
    for (size_t i = 0; i < of_one.size(); ++i)
      EXPECT_THAT(found.with_neuron[i],
                  DoubleEq(static_cast<double>(plain.Together(found.neuron, of_one[i])) / static_cast<double>(plain.Uses(found.neuron))));
    PlainFriends::Reads reads;
    for (const SequenceMasks& sequence : sequences) plain.Replay(sequence, static_cast<size_t>(window), reads);
    EXPECT_THAT(found.reads.new_neurons * static_cast<double>(reads.steps), testing::DoubleNear(static_cast<double>(reads.loads), 1e-9));
    EXPECT_THAT(found.reads.bundles * static_cast<double>(reads.steps), testing::DoubleNear(static_cast<double>(reads.bundles), 1e-9));
    EXPECT_THAT(found.reads.used * static_cast<double>(reads.friends), testing::DoubleNear(static_cast<double>(reads.used), 1e-9));
    EXPECT_THAT(found.reads.already_there * static_cast<double>(reads.friends),
                testing::DoubleNear(static_cast<double>(reads.already_there), 1e-9));
  }
}

TEST(CoactivationTest, NeuronsThatAreAlwaysActiveAreEverybodysFriend) {
  // Neurons 0 and 1 are in every mask; each other one comes alone, with them.
  SequenceMasks masks;
  for (int32_t step = 0; step < 400; ++step) masks.push_back({0, 1, 2 + step % (kNeurons - 2)});
  const Coactivation found = MeasureCoactivation(std::vector<SequenceMasks>{masks}, {.neurons = kNeurons, .masks = 4}).value();
  EXPECT_EQ(found.closest_friends, 2);
  EXPECT_THAT(found.ranks[0].mean, DoubleEq(1));
  EXPECT_EQ(found.ranks[0].neurons[100], kNeurons);
  // So every copy of a friend is of a neuron that is in memory.
  EXPECT_THAT(found.reads.already_there, DoubleEq(1));
  EXPECT_THAT(found.reads.bundles, DoubleEq(found.reads.new_neurons));
}

TEST(CoactivationTest, PairsSaveHalfOfTheReads) {
  SequenceMasks masks;
  for (int32_t step = 0; step < 400; ++step) masks.push_back({2 * (step % (kNeurons / 2)), 2 * (step % (kNeurons / 2)) + 1});
  const Coactivation found = MeasureCoactivation(std::vector<SequenceMasks>{masks}, {.neurons = kNeurons, .masks = 4}).value();
  EXPECT_THAT(found.reads.used, DoubleEq(1));
  EXPECT_THAT(found.reads.bundles, DoubleEq(found.reads.new_neurons / 2));
  EXPECT_EQ(found.closest_friends, kNeurons);
}

TEST(CoactivationTest, RefusesMasksOfAnotherLayerAndCanBeEnded) {
  const std::vector<SequenceMasks> sequences = {{{1, 5}, {2}}};
  EXPECT_THAT(std::string(MeasureCoactivation(sequences, {.neurons = 5}).status().message()), HasSubstr("unit 5"));
  EXPECT_FALSE(MeasureCoactivation(sequences, {.neurons = 0}).ok());
  EXPECT_TRUE(absl::IsCancelled(MeasureCoactivation(sequences, {.neurons = 6, .ends = [] { return true; }}).status()));
  const Coactivation empty = MeasureCoactivation(std::vector<SequenceMasks>{{{}, {}}}, {.neurons = 6}).value();
  EXPECT_TRUE(empty.with_neuron.empty());
  EXPECT_EQ(empty.closest_friends, 0);
}

}  // namespace
}  // namespace lime
