// Structured plans as recipes of a few numbers, and a search among recipes: each device's share, the order of the devices, the rounds over
// them, what every device streams. A change of a recipe changes all rounds at once, which no local move on blocks can do.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/annealer.h"
#include "planner/random.h"
#include "planner/starts.h"

namespace lime {

struct Recipe {
  std::vector<double> shares;  // by device; 0: left out
  std::vector<int32_t> order;  // all devices
  int rounds = 1;
  std::vector<StreamingStyle> styles;  // by device
};

Assignment Cook(const Instance& instance, const std::vector<int32_t>& unit_begins, const Recipe& recipe);

// Looks at recipes of fluid shares with every number of rounds, then improves the best of several numbers by small random changes. Every
// plan met goes to `offer` with its number of rounds. Spends `work` of the budget.
void SearchRecipes(const Instance& instance, const std::vector<int32_t>& unit_begins, Annealer& annealer, SearchBudget& budget, double work,
                   Random& random, const std::function<void(const Annealer::Candidate&, int rounds)>& offer);

}  // namespace lime
