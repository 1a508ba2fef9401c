// Searches the plans of one instance. It begins with structured starts and continues with several
// lines of plans. In a line, each plan is annealed from the plan before. Later phases continue
// fewer lines, with more moves for each line.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/random.h"
#include "planner/search/annealer.h"
#include "planner/search/search_budget.h"

namespace lime {

class RefiningSearch {
 public:
  using Candidate = Annealer::Candidate;

  // One line of plans. `kind` is the number of rounds of its first plan, or one of the constants
  // below.
  struct Line {
    Candidate best;
    int kind = 0;
    bool tidies = false;  // see Annealer::Schedule
  };
  // kCounted is added to the number of rounds.
  static constexpr int kSeed = -1, kAlone = 0, kCounted = 1 << 20;

  // REQUIRES: instance.Validate().ok(); `instance` and `budget` outlive this.
  RefiningSearch(const Instance& instance, const Annealer::Options& options, SearchBudget& budget);

  // Adds a plan to continue from, unchanged and repaired.
  void Offer(const Assignment& plan, int kind);
  // Adds plans with everything on one device, and recipes, until `work` of the budget is used.
  void OfferStarts(double work);
  // Ends early if a plan costs at most `good_enough_ms`.
  void Improve(double work, double good_enough_ms);

  // Cheapest first.
  const std::vector<Line>& lines() const { return lines_; }

 private:
  static constexpr size_t kMostPlans = 24, kMostAlike = 4, kMostLines = 256;

  void Insert(Candidate candidate, int kind);
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
