// The window of masks and what it says of loads, against sets that are slow and plain, and against
// cases of others.
#include "planner/demand/mask_window.h"

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/random.h"
#include "planner/demand/divide_places.h"
#include "planner/demand/mask_statistics.h"
#include "tests/cases.h"
#include "tests/flash_cases.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Mask = std::vector<int32_t>;
using Neurons = std::set<int32_t>;

// Masks whose neurons often come again, as those of a model do.
std::vector<Mask> RandomMasks(int32_t neurons, int steps, uint64_t seed) {
  Random random(seed);
  const int stays = random.Below(100), comes = 1 + random.Below(30);
  std::vector<Mask> masks;
  Neurons last;
  for (int step = 0; step < steps; ++step) {
    Neurons mask;
    for (int32_t neuron = 0; neuron < neurons; ++neuron) {
      if (random.Chance(last.contains(neuron) ? stays : comes)) mask.insert(neuron);
    }
    masks.emplace_back(mask.begin(), mask.end());
    last = mask;
  }
  return masks;
}

// The words of mask_window.h, with whole masks.
class PlainWindow {
 public:
  explicit PlainWindow(const MaskWindow::Options& options) : options_(options) {}

  // Loads of each round.
  std::vector<Mask> Step(const Mask& mask) {
    masks_.push_front(Neurons(mask.begin(), mask.end()));
    if (std::ssize(masks_) > options_.masks) masks_.pop_back();
    kept_ = 1;
    Neurons all = masks_.front();
    for (size_t i = 1; i < masks_.size(); ++i) {
      Neurons more = all;
      more.insert(masks_[i].begin(), masks_[i].end());
      if (std::ssize(more) > options_.rows) break;
      all = more, kept_ = static_cast<int32_t>(i) + 1;
    }
    std::vector<Mask> loads;
    if (std::ssize(mask) <= options_.rows) return {Round(all, masks_.front())};
    for (size_t begin = 0; begin < mask.size(); begin += static_cast<size_t>(options_.rows)) {
      const size_t end = std::min(mask.size(), begin + static_cast<size_t>(options_.rows));
      const Neurons part(mask.begin() + static_cast<int64_t>(begin), mask.begin() + static_cast<int64_t>(end));
      loads.push_back(Round(part, part));
    }
    return loads;
  }
  int32_t kept() const { return kept_; }
  int64_t UnionOf(int32_t masks) const {
    Neurons all;
    for (size_t i = 0; i < std::min(masks_.size(), static_cast<size_t>(masks)); ++i) all.insert(masks_[i].begin(), masks_[i].end());
    return std::ssize(all);
  }
  const Neurons& memory() const { return memory_; }

 private:
  Mask Round(const Neurons& may_stay, const Neurons& part) {
    std::erase_if(memory_, [&](int32_t neuron) { return !may_stay.contains(neuron); });
    Mask loads;
    for (const int32_t neuron : part) {
      if (memory_.insert(neuron).second) loads.push_back(neuron);
    }
    return loads;
  }

  const MaskWindow::Options options_;
  std::deque<Neurons> masks_;  // the newest first
  Neurons memory_;
  int32_t kept_ = 0;
};

TEST(MaskWindowTest, IsTheWindowOfWholeMasks) {
  for (int seed = 0; seed < Cases(200, 4000); ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<uint64_t>(seed) + 1000);
    const int32_t neurons = 1 + random.Below(60);
    const MaskWindow::Options options{.neurons = neurons, .rows = 1 + random.Below(neurons), .masks = 1 + random.Below(8)};
    MaskWindow window(options);
    PlainWindow plain(options);
    for (const Mask& mask : RandomMasks(neurons, 40, static_cast<uint64_t>(seed))) {
      ASSERT_TRUE(window.BeginStep(mask).ok());
      std::vector<Mask> loads;
      while (window.NextRound()) loads.emplace_back(window.coming().begin(), window.coming().end());
      ASSERT_EQ(loads, plain.Step(mask));
      ASSERT_EQ(window.masks_kept(), plain.kept());
      for (int32_t k = 1; k <= options.masks; ++k) ASSERT_EQ(window.UnionOf(k), plain.UnionOf(k)) << k;
      for (int32_t neuron = 0; neuron < neurons; ++neuron) ASSERT_EQ(window.InMemory(neuron), plain.memory().contains(neuron));
    }
  }
}

TEST(MaskWindowTest, WhatIsDroppedComesWhenAMaskHasItAndLeavesNoMore) {
  MaskWindow window({.neurons = 8, .rows = 4, .masks = 2});
  ASSERT_TRUE(window.BeginStep(Mask{0, 1, 2}).ok() && window.NextRound());
  window.Drop(1), window.Drop(2);
  window.SetRows(2);
  ASSERT_TRUE(window.BeginStep(Mask{0, 2}).ok() && window.NextRound());
  EXPECT_THAT(window.coming(), ElementsAre(2));
  EXPECT_THAT(window.leaving(), ElementsAre());
  window.SetRows(4);
  ASSERT_TRUE(window.BeginStep(Mask{1}).ok() && window.NextRound());
  EXPECT_THAT(window.coming(), ElementsAre(1));
  ASSERT_TRUE(window.BeginStep(Mask{1, 5}).ok() && window.NextRound());
  EXPECT_THAT(window.leaving(), ElementsAre(0, 2)) << "each once, ascending";
}

// Masks that come all at once, as those of a prompt do.
TEST(MaskWindowTest, RememberedMasksAreThoseOfSteps) {
  int remembered = 0;
  for (int seed = 0; seed < Cases(200, 4000); ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<uint64_t>(seed) + 2000);
    const int32_t neurons = 1 + random.Below(60);
    const MaskWindow::Options options{.neurons = neurons, .rows = 1 + random.Below(neurons), .masks = 1 + random.Below(8)};
    MaskWindow window(options), by_steps(options);
    const std::vector<Mask> masks = RandomMasks(neurons, 60, static_cast<uint64_t>(seed));
    const auto step = [](MaskWindow& of, const Mask& mask) {
      ASSERT_TRUE(of.BeginStep(mask).ok());
      while (of.NextRound()) {
      }
    };
    for (size_t next = 0; next < masks.size();) {
      // The last ones of some masks that fit into memory together.
      const size_t end = std::min(masks.size(), next + 1 + static_cast<size_t>(random.Below(6)));
      std::vector<int32_t> ages(static_cast<size_t>(neurons), MaskWindow::kNever);
      int32_t steps = 0;
      for (int64_t used = 0; steps < options.masks && steps < static_cast<int32_t>(end - next); ++steps) {
        std::vector<int32_t> with = ages;
        for (const int32_t neuron : masks[end - 1 - static_cast<size_t>(steps)]) {
          if (with[static_cast<size_t>(neuron)] == MaskWindow::kNever) with[static_cast<size_t>(neuron)] = steps, ++used;
        }
        if (used > options.rows) break;
        ages = with;
      }
      if (random.Below(2) == 0 || steps == 0) {
        step(window, masks[next]), step(by_steps, masks[next]);
        ++next;
      } else {
        std::vector<bool> before;
        for (int32_t neuron = 0; neuron < neurons; ++neuron) before.push_back(window.InMemory(neuron));
        window.Remember(ages, steps);
        for (size_t i = end - static_cast<size_t>(steps); i < end; ++i) step(by_steps, masks[i]);
        for (const int32_t neuron : window.coming()) ASSERT_FALSE(before[static_cast<size_t>(neuron)]) << neuron;
        ASSERT_TRUE(std::ranges::is_sorted(window.coming()));
        ASSERT_TRUE(window.part().empty());
        ASSERT_FALSE(window.NextRound());
        next = end, ++remembered;
      }
      ASSERT_EQ(window.masks_kept(), by_steps.masks_kept());
      for (int32_t neuron = 0; neuron < neurons; ++neuron) ASSERT_EQ(window.InMemory(neuron), by_steps.InMemory(neuron)) << neuron;
      for (int32_t k = 1; k <= options.masks; ++k) ASSERT_EQ(window.UnionOf(k), by_steps.UnionOf(k));
    }
  }
  EXPECT_GT(remembered, 100);
}

// ---- Statistics

TEST(MaskStatisticsTest, AreThoseOfOthers) {
  LIME_SKIP_WITHOUT_SHARED(FlashCasesPath());
  for (const nlohmann::json& test : FlashCases("statistics")) {
    SCOPED_TRACE(test["name"]);
    const auto masks = test["masks"].get<std::vector<Mask>>();
    const int32_t neurons = test["ffn"];
    const auto unions = test["s_agg"].get<std::vector<double>>();
    const std::vector<double> shares = UnionShares(masks, neurons, static_cast<int32_t>(unions.size())).value();
    for (size_t i = 0; i < unions.size(); ++i) EXPECT_NEAR(shares[i], unions[i], 1e-15) << i;
    for (const nlohmann::json& by_k : test["by_k"]) {
      const int32_t k = by_k["k"];
      const WindowLoads loads = LoadsOf(masks, {.neurons = neurons, .rows = neurons, .masks = k}).value();
      EXPECT_EQ(loads.loads, by_k["loads"].get<std::vector<int32_t>>()) << "k " << k;
      EXPECT_EQ(loads.rows_needed, by_k["rows_needed"]) << "k " << k;
      EXPECT_NEAR(loads.MeanShareFrom(static_cast<size_t>(k), neurons), by_k["mean_load_share"], 1e-15) << "k " << k;
    }
  }
}

// Before a step memory has the union of the last k masks; with the step's own, k + 1 of them. The two
// means are over the same unions but for the first and the last one.
TEST(MaskStatisticsTest, ALoadIsTheDifferenceOfTwoUnions) {
  const int32_t neurons = 64;
  const std::vector<Mask> masks = RandomMasks(neurons, 2000, 5);
  const std::vector<double> shares = UnionShares(masks, neurons, 6).value();
  for (int32_t k = 1; k < 6; ++k) {
    const WindowLoads loads = LoadsOf(masks, {.neurons = neurons, .rows = neurons, .masks = k}).value();
    EXPECT_NEAR(loads.MeanShareFrom(static_cast<size_t>(k), neurons), shares[static_cast<size_t>(k)] - shares[static_cast<size_t>(k) - 1],
                1e-3);
  }
}

TEST(MaskStatisticsTest, WrongMasksAreRefused) {
  const std::vector<Mask> masks = {{1, 2}, {2, 9}};
  EXPECT_THAT(std::string(UnionShares(masks, 10, 3).status().message()), HasSubstr("need 1 to the 2 masks"));
  EXPECT_THAT(std::string(UnionShares(masks, 9, 2).status().message()), HasSubstr("unit 9"));
  EXPECT_THAT(std::string(LoadsOf(masks, {.neurons = 9, .rows = 9, .masks = 2}).status().message()), HasSubstr("unit 9"));
  EXPECT_THAT(std::string(LoadsOf(masks, {.neurons = 10, .rows = 0, .masks = 2}).status().message()), HasSubstr("0 rows"));
  EXPECT_EQ(LoadsOf({}, {.neurons = 9, .rows = 9, .masks = 2})->MeanShareFrom(0, 9), 0);
}

// ---- Rows of several layers

// Layer 0 has masks; layer 1 has the same neurons in every step; layer 2 is never visited.
RouteLog LogOf(const std::vector<Mask>& masks, int32_t neurons) {
  RouteLog log({.model = "m", .layers = 3, .units = neurons});
  const Mask same = {0, 1, 2};
  for (const Mask& mask : masks) {
    const int64_t step = log.num_steps();
    if (!mask.empty()) EXPECT_TRUE(log.Add(step, 0, 1, mask).ok());
    EXPECT_TRUE(log.Add(step, 1, 1, same).ok());
  }
  return log;
}

TEST(WindowCurveTest, LiesAroundTheLoadsOfTheWindow) {
  const int32_t neurons = 64;
  const std::vector<Mask> masks = RandomMasks(neurons, 300, 9);
  RouteLog log = LogOf(masks, neurons);
  EXPECT_TRUE(log.Add(log.num_steps(), 0, 2, Mask{5}).ok());  // a prompt does not count
  const std::vector<HitCurve> curves = WindowCurvesOf(log, 5);
  ASSERT_EQ(curves.size(), 3u);
  for (const int32_t rows : {1, 9, 16, 36, 64}) {  // squares are among the points of a curve
    const WindowLoads loads = LoadsOf(masks, {.neurons = neurons, .rows = rows, .masks = 5}).value();
    const double hits = 1 - static_cast<double>(loads.total()) / static_cast<double>(loads.uses);
    EXPECT_GE(curves[0].At(rows), hits - 1e-12) << rows;
    if (rows == 64) EXPECT_NEAR(curves[0].At(rows), hits, 1e-12);
  }
  EXPECT_NEAR(curves[1].At(3), 299.0 / 300, 1e-12) << "the first step loads what stays";
  EXPECT_EQ(curves[2].units(), 0);
}

TEST(WindowCurveTest, DividesRowsAmongLayers) {
  const int32_t neurons = 64;
  const std::vector<HitCurve> curves = WindowCurvesOf(LogOf(RandomMasks(neurons, 300, 9), neurons), 5);
  const std::vector<LayerDemand> layers = {{.hits = curves[0], .unit_bytes = 4096, .uses = 9},
                                           {.hits = curves[1], .unit_bytes = 4096, .uses = 3}};
  const std::vector<int32_t> rows = DividePlaces(layers, 40 * 4096).value();
  EXPECT_EQ(rows[1], 3) << "more rows save nothing";
  EXPECT_EQ(rows[0], 37);
}

}  // namespace
}  // namespace lime
