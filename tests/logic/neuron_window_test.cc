// Rows of neurons: cases of others, and what holds for any masks.
#include "daemon/logic/neuron_window/neuron_window.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/random.h"
#include "planner/demand/route_log.h"
#include "tests/cases.h"
#include "tests/flash_cases.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Mask = std::vector<int32_t>;

std::unique_ptr<NeuronWindow> Window(int32_t neurons, int32_t rows, int32_t masks, RowPlacement placement) {
  return NeuronWindow::Create({.window = {.neurons = neurons, .rows = rows, .masks = masks}, .placement = placement}).value();
}

Mask RandomMask(int32_t neurons, int percent, Random& random) {
  Mask mask;
  for (int32_t neuron = 0; neuron < neurons; ++neuron) {
    if (random.Chance(percent)) mask.push_back(neuron);
  }
  return mask;
}

// A round as the cases have it.
nlohmann::json RoundOf(const NeuronWindow& window, int32_t rows) {
  using nlohmann::json;
  json round = {{"delete", json::array()}, {"moves", json::array()}, {"load", json::array()}, {"pointer", json::array()}};
  for (const int32_t neuron : window.deletes()) round["delete"].push_back(neuron);
  for (const NeuronWindow::Move& move : window.moves()) round["moves"].push_back({move.from, move.to});
  for (const NeuronWindow::Load& load : window.loads()) round["load"].push_back({load.neuron, load.row});
  for (int32_t row = 0; row < rows; ++row) round["pointer"].push_back(window.NeuronIn(row));
  round["num_used"] = window.num_used();
  return round;
}

TEST(NeuronWindowTest, GivesTheTranscriptsOfOthers) {
  LIME_SKIP_WITHOUT_SHARED(FlashCasesPath());
  for (const nlohmann::json& test : FlashCases("window")) {
    SCOPED_TRACE(test["name"]);
    const int32_t rows = test["rows"];
    const auto window = Window(test["ffn"], rows, test["k"], kRowPlacementNames.Find(test["placement"].get<std::string>()).value());
    for (size_t i = 0; i < test["masks"].size(); ++i) {
      ASSERT_TRUE(window->BeginStep(test["masks"][i].get<Mask>()).ok());
      nlohmann::json rounds = nlohmann::json::array();
      while (window->NextRound()) rounds.push_back(RoundOf(*window, rows));
      const nlohmann::json& step = test["steps"][i];
      EXPECT_EQ(window->masks_kept(), step["window"]) << "step " << i;
      EXPECT_EQ(rounds, step["rounds"]) << "step " << i;
    }
  }
}

// The owner's memory: it does what the window says.
class Rows {
 public:
  explicit Rows(int32_t rows) : content_(static_cast<size_t>(rows), NeuronWindow::kNone) {}

  void CarryOut(const NeuronWindow& window) {
    for (const NeuronWindow::Move& move : window.moves()) At(move.to) = At(move.from);
    for (const NeuronWindow::Load& load : window.loads()) At(load.row) = load.neuron;
  }
  int32_t& At(int32_t row) { return content_[static_cast<size_t>(row)]; }

 private:
  std::vector<int32_t> content_;
};

void CheckRound(NeuronWindow& window, Rows& memory, int32_t rows, RowPlacement placement) {
  memory.CarryOut(window);
  ASSERT_LE(window.num_used(), rows);
  int32_t used = 0;
  std::set<int32_t> seen;
  for (int32_t row = 0; row < rows; ++row) {
    const int32_t neuron = window.NeuronIn(row);
    if (neuron == NeuronWindow::kNone) continue;
    ++used;
    ASSERT_TRUE(seen.insert(neuron).second) << "neuron " << neuron << " is in two rows";
    ASSERT_EQ(window.RowOf(neuron), row);
    ASSERT_EQ(memory.At(row), neuron) << "row " << row << " has the weights of another neuron";
    if (placement == RowPlacement::kCompact) {
      ASSERT_LT(row, window.num_used());
    }
  }
  ASSERT_EQ(used, window.num_used());
  for (const int32_t neuron : window.part()) ASSERT_TRUE(seen.contains(neuron)) << "neuron " << neuron << " is not there";
  for (const int32_t neuron : window.deletes()) ASSERT_EQ(window.RowOf(neuron), NeuronWindow::kNone);
  if (placement == RowPlacement::kStable) {
    ASSERT_THAT(window.moves(), IsEmpty());
  }
}

TEST(NeuronWindowTest, EveryNeuronOfAPartHasItsWeightsInItsRow) {
  for (int seed = 0; seed < Cases(200, 4000); ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<uint64_t>(seed));
    const int32_t neurons = 1 + random.Below(70), rows = 1 + random.Below(neurons), masks = 1 + random.Below(6);
    const RowPlacement placement = random.Chance(50) ? RowPlacement::kStable : RowPlacement::kCompact;
    const auto window = Window(neurons, rows, masks, placement);
    Rows memory(rows);
    const int percent = random.Below(60);
    for (int step = 0; step < 30; ++step) {
      const Mask mask = RandomMask(neurons, percent, random);
      ASSERT_TRUE(window->BeginStep(mask).ok());
      Mask computed;
      while (window->NextRound()) {
        CheckRound(*window, memory, rows, placement);
        if (HasFatalFailure()) return;
        computed.insert(computed.end(), window->part().begin(), window->part().end());
      }
      ASSERT_EQ(computed, mask) << "every neuron once, ascending";
    }
  }
}

TEST(NeuronWindowTest, BothPlacementsLoadTheSameNeurons) {
  Random random(7);
  const auto stable = Window(64, 20, 3, RowPlacement::kStable), compact = Window(64, 20, 3, RowPlacement::kCompact);
  for (int step = 0; step < 50; ++step) {
    const Mask mask = RandomMask(64, random.Below(50), random);
    ASSERT_TRUE(stable->BeginStep(mask).ok() && compact->BeginStep(mask).ok());
    while (stable->NextRound()) {
      ASSERT_TRUE(compact->NextRound());
      ASSERT_EQ(stable->loads().size(), compact->loads().size());
      for (size_t i = 0; i < stable->loads().size(); ++i) EXPECT_EQ(stable->loads()[i].neuron, compact->loads()[i].neuron);
    }
    EXPECT_FALSE(compact->NextRound());
  }
}

TEST(NeuronWindowTest, AfterAFailedStepNothingIsTakenFromMemory) {
  const auto window = Window(8, 4, 2, RowPlacement::kStable);
  ASSERT_TRUE(window->BeginStep(Mask{1, 2, 3, 4, 5}).ok());
  ASSERT_TRUE(window->NextRound());  // its reads fail, and a round is left
  window->Clear();
  EXPECT_EQ(window->num_used(), 0);
  EXPECT_FALSE(window->NextRound());
  ASSERT_TRUE(window->BeginStep(Mask{2, 7}).ok());
  ASSERT_TRUE(window->NextRound());
  EXPECT_THAT(window->loads(), ElementsAre(NeuronWindow::Load{2, 0}, NeuronWindow::Load{7, 1}));
  EXPECT_THAT(window->deletes(), IsEmpty());
  EXPECT_EQ(window->masks_kept(), 1);
}

TEST(NeuronWindowTest, AWrongMaskIsRefusedAndChangesNothing) {
  const auto window = Window(8, 4, 2, RowPlacement::kCompact);
  ASSERT_TRUE(window->BeginStep(Mask{1, 2}).ok());
  while (window->NextRound()) continue;
  EXPECT_THAT(std::string(window->BeginStep(Mask{3, 3}).message()), HasSubstr("must ascend"));
  EXPECT_THAT(std::string(window->BeginStep(Mask{8}).message()), HasSubstr("unit 8"));
  EXPECT_THAT(std::string(window->BeginStep(Mask{-1}).message()), HasSubstr("unit -1"));
  EXPECT_FALSE(window->NextRound());
  ASSERT_TRUE(window->BeginStep(Mask{1, 3}).ok());
  ASSERT_TRUE(window->NextRound());
  EXPECT_THAT(window->loads(), ElementsAre(NeuronWindow::Load{3, 2}));
}

TEST(NeuronWindowTest, NumbersOutsideTheirBoundsAreRefused) {
  const auto refused = [](const MaskWindow::Options& options) {
    return std::string(NeuronWindow::Create({.window = options}).status().message());
  };
  EXPECT_EQ(refused({.neurons = 8, .rows = 8, .masks = 1}), "");
  EXPECT_THAT(refused({.neurons = 0, .rows = 1, .masks = 1}), HasSubstr("0 neurons"));
  EXPECT_THAT(refused({.neurons = kMostRouteUnits + 1, .rows = 1, .masks = 1}), HasSubstr("neurons, need 1"));
  EXPECT_THAT(refused({.neurons = 8, .rows = 0, .masks = 1}), HasSubstr("0 rows"));
  EXPECT_THAT(refused({.neurons = 8, .rows = 9, .masks = 1}), HasSubstr("9 rows"));
  EXPECT_THAT(refused({.neurons = 8, .rows = 8, .masks = 0}), HasSubstr("0 masks"));
  EXPECT_THAT(refused({.neurons = 8, .rows = 8, .masks = kMostWindowMasks + 1}), HasSubstr("masks, need 1"));
}

}  // namespace
}  // namespace lime
