// Recipes describe structured plans by a few numbers: each device's share, the order of the
// devices, the rounds, and what each device streams. A search changes recipes. One change affects
// all rounds, which a local move on blocks cannot do.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/base/random.h"
#include "planner/search/annealer.h"
#include "planner/search/mixed_counts.h"
#include "planner/search/starts.h"

namespace lime {

enum class RecipeKind {
  kFluid,    // shares of the model; the first are fluid shares
  kCounted,  // as many units as fit (half_counts.h)
  // As many units as fit if each device streams the sizes that suit it (mixed_counts.h), spread
  // evenly.
  kMixed,
  // The same counts, with blocks placed where they arrive from the disks (dispatch.h).
  kDispatched,
};

struct Recipe {
  // By device; 0: unused. With limit_ms > 0: the usable share of its memory. The device then gets
  // as many units as this memory and limit_ms of disk reads allow. Else: its share of the model.
  std::vector<double> shares;
  double limit_ms = 0;
  std::vector<int32_t> order;          // all devices
  int rounds = 1;                      // 0: kDispatched
  std::vector<StreamingStyle> styles;  // by device
  // For kMixed and kDispatched, which ignore shares and styles; else empty.
  std::vector<double> pools;                    // by device
  std::vector<MixedCountProgram::Share> mixed;  // by device; empty: not computed yet
  double ahead = 0;
  uint64_t seed = 0;
};

// Examines recipes with fluid shares for every number of rounds, then improves the best of several
// numbers by small random changes. `offer` gets every plan, with its rounds and the kind of its
// first recipe. Spends `work` of the budget.
void SearchRecipes(const Instance& instance, const std::vector<int32_t>& unit_begins, Annealer& annealer, SearchBudget& budget, double work,
                   Random& random, const std::function<void(const Annealer::Candidate&, int rounds, RecipeKind kind)>& offer);

}  // namespace lime
