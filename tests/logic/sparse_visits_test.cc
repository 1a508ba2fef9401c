// Visits of sparse parts: every neuron and every piece is computed once, in order, from memory that it
// was read into, whatever the order in which reads end.
#include "daemon/logic/neuron_window/sparse_visits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "planner/base/random.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::unique_ptr<SparseVisits> OpenVisits(std::vector<MaskWindow::Options> parts) {
  auto visits = SparseVisits::Create(parts);
  EXPECT_TRUE(visits.ok()) << visits.status();
  return *std::move(visits);
}

std::vector<int32_t> ReadyUnits(SparseVisits& visits) {
  std::vector<int32_t> units;
  while (const auto unit = visits.NextReady()) units.push_back(unit->unit);
  return units;
}

std::vector<int32_t> TakenLoads(SparseVisits& visits) {
  std::vector<int32_t> neurons;
  for (const auto& load : visits.TakeLoads()) neurons.push_back(load.neuron);
  return neurons;
}

TEST(SparseVisitsTest, NeuronsAreComputedInOrderAsSoonAsAllBeforeThemAreThere) {
  const auto visits = OpenVisits({{.neurons = 10, .rows = 6, .masks = 2}});
  const std::vector<int32_t> first = {1, 4, 6}, second = {1, 3, 4, 8};
  ASSERT_TRUE(visits->BeginNeurons(0, first, 1).ok());
  EXPECT_THAT(TakenLoads(*visits), ElementsAre(1, 4, 6));
  EXPECT_THAT(TakenLoads(*visits), IsEmpty()) << "once a round";
  EXPECT_THAT(ReadyUnits(*visits), IsEmpty());
  visits->OnNeuronRead(6);
  EXPECT_THAT(ReadyUnits(*visits), IsEmpty()) << "1 and 4 come first";
  visits->OnNeuronRead(1);
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(1));
  visits->OnNeuronRead(4);
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(4, 6));
  visits->OnComputed(1);
  EXPECT_TRUE(visits->IsUnderWay());
  visits->OnComputed(2);
  EXPECT_FALSE(visits->IsUnderWay());
  ASSERT_TRUE(visits->BeginNeurons(0, second, 2).ok());
  EXPECT_THAT(TakenLoads(*visits), ElementsAre(3, 8)) << "1 and 4 are there";
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(1)) << "before any read has ended";
  visits->OnNeuronRead(8), visits->OnNeuronRead(3);
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(3, 4, 8));
  visits->OnComputed(4);
  EXPECT_EQ(visits->counts(0), (SparseVisits::Counts{.visits = 2, .rows = 3, .active = 7, .loaded = 5}));
}

TEST(SparseVisitsTest, FewNeuronsWaitForOthersUntilTheRoundEnds) {
  const auto visits = OpenVisits({{.neurons = 64, .rows = 40, .masks = 2}});
  std::vector<int32_t> mask(33);
  std::iota(mask.begin(), mask.end(), 10);
  ASSERT_TRUE(visits->BeginNeurons(0, mask, 1).ok());
  for (const int32_t neuron : {12, 11, 10}) visits->OnNeuronRead(neuron);
  EXPECT_THAT(ReadyUnits(*visits), IsEmpty()) << "three of 33 are less than an eighth";
  visits->OnNeuronRead(13);
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(10, 11, 12, 13));
  visits->OnNeuronRead(14);
  EXPECT_THAT(ReadyUnits(*visits), IsEmpty());
  for (int32_t neuron = 15; neuron < 41; ++neuron) visits->OnNeuronRead(neuron);
  EXPECT_EQ(ReadyUnits(*visits).size(), 27u);
  visits->OnNeuronRead(42);
  EXPECT_THAT(ReadyUnits(*visits), IsEmpty());
  visits->OnNeuronRead(41);
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(41, 42)) << "the last ones of the round";
  visits->OnComputed(33);
  EXPECT_FALSE(visits->IsUnderWay());
}

TEST(SparseVisitsTest, AMaskLargerThanMemoryComesInRounds) {
  const auto visits = OpenVisits({{.neurons = 9, .rows = 2, .masks = 4}});
  const std::vector<int32_t> mask = {0, 2, 5, 7, 8};
  ASSERT_TRUE(visits->BeginNeurons(0, mask, 1).ok());
  std::vector<int32_t> computed;
  int rounds = 0;
  while (visits->IsUnderWay()) {
    const std::vector<int32_t> loads = TakenLoads(*visits);
    ASSERT_LE(loads.size(), 2u);
    for (const int32_t neuron : loads) visits->OnNeuronRead(neuron);
    const std::vector<int32_t> ready = ReadyUnits(*visits);
    ASSERT_FALSE(ready.empty());
    computed.insert(computed.end(), ready.begin(), ready.end());
    visits->OnComputed(static_cast<int32_t>(ready.size()));
    ++rounds;
  }
  EXPECT_EQ(computed, mask);
  EXPECT_EQ(rounds, 3);
}

TEST(SparseVisitsTest, PiecesPassThroughTwoPlacesInOrder) {
  const auto visits = OpenVisits({{.neurons = 9, .rows = 2, .masks = 4}});
  visits->BeginPieces(0, 3, {});
  EXPECT_THAT(visits->copies(), IsEmpty());
  EXPECT_FALSE(visits->by_neurons());
  EXPECT_THAT(TakenLoads(*visits), IsEmpty());
  EXPECT_EQ(visits->TakePiece(), (SparseVisits::Unit{0, 0}));
  EXPECT_EQ(visits->TakePiece(), (SparseVisits::Unit{1, 1}));
  EXPECT_EQ(visits->TakePiece(), std::nullopt) << "both places are in use";
  visits->OnPieceRead(1);
  EXPECT_THAT(ReadyUnits(*visits), IsEmpty());
  visits->OnPieceRead(0);
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(0, 1));
  EXPECT_EQ(visits->TakePiece(), std::nullopt) << "neither is computed";
  visits->OnComputed(1);
  EXPECT_EQ(visits->TakePiece(), (SparseVisits::Unit{2, 0}));
  visits->OnComputed(1);
  EXPECT_THAT(ReadyUnits(*visits), IsEmpty());
  visits->OnPieceRead(2);
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(2));
  visits->OnComputed(1);
  EXPECT_FALSE(visits->IsUnderWay());
}

TEST(SparseVisitsTest, AVisitAfterPiecesFindsTheNeuronsOfTheirLastMasks) {
  const auto visits = OpenVisits({{.neurons = 9, .rows = 4, .masks = 3}});
  const std::vector<int32_t> before = {0, 1}, after = {1, 4, 7}, none(9, MaskWindow::kNever);
  ASSERT_TRUE(visits->BeginNeurons(0, before, 1).ok());
  visits->OnNeuronRead(0), visits->OnNeuronRead(1);
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(0, 1));
  visits->OnComputed(2);
  std::vector<int32_t> ages = none;
  ages[1] = 1, ages[4] = 0, ages[5] = 1;  // {1, 5}, then {4}
  visits->BeginPieces(0, 1, {.ages = ages, .masks = 2});
  EXPECT_THAT(visits->copies(), ElementsAre(NeuronWindow::Load{4, 2}, NeuronWindow::Load{5, 3})) << "1 is in memory";
  EXPECT_THAT(TakenLoads(*visits), IsEmpty());
  visits->TakePiece();
  visits->OnPieceRead(0);
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(0));
  visits->OnComputed(1);
  ASSERT_TRUE(visits->BeginNeurons(0, after, 1).ok());
  EXPECT_THAT(TakenLoads(*visits), ElementsAre(7));
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(1, 4));
  EXPECT_EQ(visits->counts(0), (SparseVisits::Counts{.visits = 2, .rows = 2, .active = 5, .loaded = 3, .copied = 2}));
}

TEST(SparseVisitsTest, RowsThatAVisitUsesGoWhenItEnds) {
  const auto visits = OpenVisits({{.neurons = 10, .rows = 6, .masks = 9}, {.neurons = 10, .rows = 6, .masks = 9}});
  const std::vector<int32_t> mask = {0, 2, 4, 6, 8};
  ASSERT_TRUE(visits->BeginNeurons(0, mask, 1).ok());
  EXPECT_EQ(visits->SetRows(0, 2), (SparseVisits::Rows{6, 0})) << "all may be in use";
  EXPECT_EQ(visits->SetRows(1, 2), (SparseVisits::Rows{2, 4})) << "no visit of this part";
  EXPECT_EQ(visits->num_rows(0), 6);
  for (const int32_t neuron : mask) visits->OnNeuronRead(neuron);
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_EQ(visits->NextGivenBack(), std::nullopt);
  visits->OnComputed(5);
  EXPECT_EQ(visits->NextGivenBack(), (SparseVisits::GivenBack{0, {2, 4}}));
  EXPECT_EQ(visits->NextGivenBack(), std::nullopt);
  EXPECT_EQ(visits->num_rows(0), 2);
  EXPECT_EQ(visits->num_used(0), 2);
  ASSERT_TRUE(visits->BeginNeurons(0, mask, 1).ok());
  EXPECT_THAT(TakenLoads(*visits), IsEmpty()) << "0 and 2 are in the rows that stay";
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(0, 2)) << "a round";
  EXPECT_EQ(visits->SetRows(0, 4), (SparseVisits::Rows{2, 2}));
  visits->OnComputed(2);
  EXPECT_THAT(TakenLoads(*visits), ElementsAre(4, 6)) << "they are used from the next visit on";
}

TEST(SparseVisitsTest, AWrongMaskIsRefusedAndChangesNothing) {
  const auto visits = OpenVisits({{.neurons = 9, .rows = 2, .masks = 4}});
  for (const std::vector<int32_t>& wrong : {std::vector<int32_t>{3, 3}, {4, 1}, {9}, {-1}}) {
    EXPECT_FALSE(visits->BeginNeurons(0, wrong, 1).ok());
    EXPECT_FALSE(visits->IsUnderWay());
  }
  const std::vector<int32_t> right = {8};
  EXPECT_TRUE(visits->BeginNeurons(0, right, 1).ok());
}

TEST(SparseVisitsTest, AVisitWithoutActiveNeuronsIsCountedAndLeavesTheWindow) {
  const auto visits = OpenVisits({{.neurons = 9, .rows = 2, .masks = 4}});
  const std::vector<int32_t> mask = {3};
  ASSERT_TRUE(visits->BeginNeurons(0, mask, 1).ok());
  visits->OnNeuronRead(3);
  EXPECT_THAT(ReadyUnits(*visits), ElementsAre(3));
  visits->OnComputed(1);
  ASSERT_TRUE(visits->BeginNeurons(0, {}, 2).ok());
  EXPECT_FALSE(visits->IsUnderWay());
  EXPECT_EQ(visits->counts(0), (SparseVisits::Counts{.visits = 2, .rows = 3, .active = 1, .loaded = 1}));
  EXPECT_EQ(visits->num_used(0), 1);
}

// Two parts with random masks. Reads end in any order, and computations in any number of turns. What is
// computed is in the row that it was read into, and in no other.
TEST(SparseVisitsTest, RandomVisitsComputeEverythingOnceFromItsOwnMemory) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<MaskWindow::Options> parts;
    for (int i = 0; i < 2; ++i) {
      const int32_t neurons = 1 + random.Below(40);
      parts.push_back({.neurons = neurons, .rows = 1 + random.Below(neurons), .masks = 1 + random.Below(6)});
    }
    const auto visits = OpenVisits(parts);
    std::vector<std::vector<int32_t>> memory;  // by part and row: its neuron; kFreed: the row has no memory
    constexpr int32_t kFreed = -2;
    memory.reserve(parts.size());
    for (const auto& part : parts) memory.emplace_back(static_cast<size_t>(part.rows), -1);
    std::vector<int32_t> targets = {parts[0].rows, parts[1].rows};
    const auto free_rows = [&](int32_t part, const SparseVisits::Rows& rows) {
      for (int32_t row = rows.first; row < rows.first + rows.count; ++row) {
        int32_t& of = memory[static_cast<size_t>(part)][static_cast<size_t>(row)];
        ASSERT_NE(of, kFreed) << "freed again";
        of = kFreed;
      }
    };
    const auto give_back = [&] {
      if (const auto given = visits->NextGivenBack()) free_rows(given->part, given->rows);
    };
    const auto set_rows = [&](int32_t part) {
      targets[static_cast<size_t>(part)] = 1 + random.Below(parts[static_cast<size_t>(part)].rows);
      const int32_t before = visits->num_rows(part);
      const SparseVisits::Rows rows = visits->SetRows(part, targets[static_cast<size_t>(part)]);
      if (visits->num_rows(part) < before) return free_rows(part, rows);
      for (int32_t row = rows.first; row < rows.first + rows.count; ++row) {
        int32_t& of = memory[static_cast<size_t>(part)][static_cast<size_t>(row)];
        ASSERT_EQ(of, kFreed);
        of = -1;
      }
    };
    for (int visit = 0; visit < 60; ++visit) {
      const int32_t part = random.Below(2);
      const bool by_neurons = random.Below(4) > 0;
      std::vector<int32_t> all, computed, reading;
      if (by_neurons) {
        const int percent = 1 + random.Below(100);
        for (int32_t neuron = 0; neuron < parts[static_cast<size_t>(part)].neurons; ++neuron) {
          if (random.Below(100) < percent) all.push_back(neuron);
        }
        if (all.empty()) continue;
        ASSERT_TRUE(visits->BeginNeurons(part, all, 1).ok());
      } else {
        all.resize(static_cast<size_t>(random.Below(7)) + 1);
        std::iota(all.begin(), all.end(), 0);
        // Neurons of the last masks, as many as memory has room for.
        const MaskWindow::Options& of = parts[static_cast<size_t>(part)];
        std::vector<int32_t> ages(static_cast<size_t>(of.neurons), MaskWindow::kNever);
        const int32_t masks = random.Below(of.masks + 1);
        for (int32_t i = 0; masks > 0 && i < visits->num_rows(part); ++i)
          ages[static_cast<size_t>(random.Below(of.neurons))] = random.Below(masks);
        visits->BeginPieces(part, static_cast<int32_t>(all.size()), {.ages = ages, .masks = masks});
        for (const auto& copy : visits->copies()) {
          ASSERT_NE(memory[static_cast<size_t>(part)][static_cast<size_t>(copy.row)], kFreed);
          memory[static_cast<size_t>(part)][static_cast<size_t>(copy.row)] = copy.neuron;
        }
      }
      int32_t not_computed = 0;
      std::map<int32_t, int32_t> pieces;  // by place, of those that are not computed
      while (visits->IsUnderWay()) {
        if (random.Below(8) == 0) set_rows(random.Below(2));  // in the middle of the visit, or of the other part
        if (HasFatalFailure()) return;
        for (const auto& load : visits->TakeLoads()) {
          ASSERT_NE(memory[static_cast<size_t>(part)][static_cast<size_t>(load.row)], kFreed);
          memory[static_cast<size_t>(part)][static_cast<size_t>(load.row)] = load.neuron;
          reading.push_back(load.neuron);
        }
        while (const auto piece = visits->TakePiece()) {
          ASSERT_TRUE(pieces.emplace(piece->place, piece->unit).second) << "the place is in use";
          reading.push_back(piece->unit);
        }
        if (!reading.empty() && random.Below(2) > 0) {
          const auto ended = reading.begin() + random.Below(static_cast<int>(reading.size()));
          by_neurons ? visits->OnNeuronRead(*ended) : visits->OnPieceRead(*ended);
          reading.erase(ended);
        }
        while (const auto unit = visits->NextReady()) {
          ASSERT_EQ(std::ranges::count(reading, unit->unit), 0) << "it is still being read";
          if (by_neurons) {
            ASSERT_EQ(memory[static_cast<size_t>(part)][static_cast<size_t>(unit->place)], unit->unit);
          } else {
            ASSERT_EQ(pieces.at(unit->place), unit->unit);
          }
          computed.push_back(unit->unit);
          ++not_computed;
        }
        if (not_computed == 0 || random.Below(3) == 0) continue;
        const int32_t some = 1 + random.Below(not_computed);
        if (!by_neurons) {
          for (int32_t i = 0; i < some; ++i)
            pieces.erase(computed[computed.size() - static_cast<size_t>(not_computed) + static_cast<size_t>(i)] % SparseVisits::kPieces);
        }
        visits->OnComputed(some);
        not_computed -= some;
        give_back();
      }
      ASSERT_EQ(computed, all);
      for (int32_t p = 0; p < 2; ++p) {
        ASSERT_EQ(visits->num_rows(p), targets[static_cast<size_t>(p)]);
        ASSERT_LE(visits->num_used(p), targets[static_cast<size_t>(p)]);
        ASSERT_EQ(memory[static_cast<size_t>(p)].size() - static_cast<size_t>(std::ranges::count(memory[static_cast<size_t>(p)], kFreed)),
                  static_cast<size_t>(targets[static_cast<size_t>(p)]));
      }
      if (random.Below(4) == 0) set_rows(random.Below(2));
    }
  }
}

}  // namespace
}  // namespace lime
