// The search among the plans of one instance: structured starts, then several lines of plans, each annealed from the one before, ever
// fewer and ever longer.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/annealer.h"
#include "planner/random.h"
#include "planner/search_budget.h"

namespace lime {

class LevelSearch {
 public:
  using Candidate = Annealer::Candidate;

  // Begun at a start of some kind: the number of its rounds, or those below.
  struct Line {
    Candidate best;
    int kind = 0;
    bool tidies = false;  // how it is annealed
  };
  static constexpr int kSeed = -1, kAlone = 0, kCounted = 1 << 20;  // kCounted: beside the number of rounds

  // REQUIRES: instance.Validate().ok(); `instance` and `budget` outlive this.
  LevelSearch(const Instance& instance, const Annealer::Options& options, SearchBudget& budget);

  // A plan to go on from, as it is and repaired.
  void Offer(const Assignment& plan, int kind);
  // Everything on one device, and recipes, as long as `work` of the budget lasts.
  void OfferStarts(double work);
  // Ends early once a plan costs no more than `good_enough_ms`.
  void Improve(double work, double good_enough_ms);

  // Cheapest first.
  const std::vector<Line>& lines() const { return lines_; }

 private:
  static constexpr size_t kMostPlans = 24, kMostAlike = 4, kMostLines = 256;

  void Keep(Candidate candidate, int kind);
  void Sort();
  void KeepBest(size_t plans);

  const Instance& instance_;
  SearchBudget& budget_;
  Annealer annealer_;
  Random random_;
  const std::vector<int32_t> unit_begins_;
  std::vector<Line> lines_;
};

}  // namespace lime
