// Structured plans as recipes of a few numbers, and a search among recipes: each device's share, the order of the devices, the rounds over
// them, what every device streams. A change of a recipe changes all rounds at once, which no local move on blocks can do.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/annealer.h"
#include "planner/mixed_counts.h"
#include "planner/random.h"
#include "planner/starts.h"

namespace lime {

enum class RecipeKind {
  kFluid,       // shares of the model, begun at those of a fluid
  kCounted,     // as many units as fit (unit_counts.h)
  kMixed,       // as many as fit where every device streams what is best (mixed_counts.h), spread evenly
  kDispatched,  // the same, where the blocks stand by when they come from the disks (dispatch.h)
};

struct Recipe {
  // By device; 0: left out. Where there is a limit these are shares of its memory, and it gets as many units as fit there beside what its
  // disk reads in so long; else of the model.
  std::vector<double> shares;
  double limit_ms = 0;
  std::vector<int32_t> order;          // all devices
  int rounds = 1;                      // 0: kDispatched
  std::vector<StreamingStyle> styles;  // by device
  // Of the last two kinds, to which shares and styles do not matter; empty in others.
  std::vector<double> pools;                    // by device
  std::vector<MixedCountProgram::Share> mixed;  // by device; empty where it has not been asked for
  double ahead = 0;
  uint64_t seed = 0;
};

// Looks at recipes of fluid shares with every number of rounds, then improves the best of several numbers by small random changes. Every
// plan met goes to `offer` with its number of rounds, and how it was begun. Spends `work` of the budget.
void SearchRecipes(const Instance& instance, const std::vector<int32_t>& unit_begins, Annealer& annealer, SearchBudget& budget, double work,
                   Random& random, const std::function<void(const Annealer::Candidate&, int rounds, RecipeKind kind)>& offer);

}  // namespace lime
