#include "planner/search/refining_search.h"

#include <algorithm>
#include <utility>

#include "planner/search/recipes.h"

namespace lime {

RefiningSearch::RefiningSearch(const Instance& instance, const Annealer::Options& options, SearchBudget& budget)
    : instance_(instance),
      budget_(budget),
      annealer_(instance, options, budget),
      random_(options.seed),
      unit_begins_(UnitBegins(instance, options.granularity)) {}

// Keeps the cheapest plans of each kind. All have different costs.
void RefiningSearch::Insert(Candidate candidate, int kind) {
  size_t alike = 0;
  for (const Line& line : lines_) {
    if (line.best.cost == candidate.cost) return;
    alike += line.kind == kind ? 1 : 0;
  }
  lines_.push_back({std::move(candidate), kind});
  if (alike < kMostAlike) {
    if (lines_.size() > kMostLines) {
      lines_.erase(std::max_element(lines_.begin(), lines_.end(), [](const Line& a, const Line& b) { return a.best.cost < b.best.cost; }));
    }
    return;
  }
  auto worst = lines_.end() - 1;
  for (auto line = lines_.begin(); line != lines_.end(); ++line) {
    if (line->kind == kind && line->best.cost > worst->best.cost) worst = line;
  }
  lines_.erase(worst);
}

void RefiningSearch::Offer(const Assignment& plan, int kind) {
  const double cost = annealer_.Cost(plan);
  if (cost < Annealer::kDoesNotFit) Insert({plan, cost}, kind);
  Insert(annealer_.Repaired(plan), kind);
}

void RefiningSearch::OfferStarts(double work) {
  for (int d = 0; d < instance_.NumDevices(); ++d) {
    Insert(annealer_.Repaired(AllOn(instance_, d)), kAlone);
    if (!budget_.Spend(1)) return;
  }
  SearchRecipes(instance_, unit_begins_, annealer_, budget_, work, random_,
                [&](const Candidate& plan, int rounds, RecipeKind kind) { Insert(plan, rounds + kCounted * static_cast<int>(kind)); });
}

void RefiningSearch::Sort() {
  std::stable_sort(lines_.begin(), lines_.end(), [](const Line& a, const Line& b) { return a.best.cost < b.best.cost; });
}

// If several remain, one began from counts and one did not. Their costs do not show which can
// improve more.
void RefiningSearch::KeepBest(size_t plans) {
  if (lines_.size() <= plans) return;
  const auto counted = [](const Line& line) { return line.kind >= kCounted; };
  const auto last = lines_.begin() + static_cast<int64_t>(plans) - 1;
  const bool alike = std::all_of(lines_.begin(), last + 1, [&](const Line& line) { return counted(line) == counted(lines_.front()); });
  const auto other = std::find_if(last, lines_.end(), [&](const Line& line) { return counted(line) != counted(lines_.front()); });
  if (plans > 1 && alike && other != lines_.end()) std::iter_swap(last, other);
  lines_.resize(plans);
}

void RefiningSearch::Improve(double work, double good_enough_ms) {
  const double moves = work / (4.0 * instance_.NumBlocks() + 100);
  const size_t plans = static_cast<size_t>(std::clamp(moves / 10000, 2.0, static_cast<double>(kMostPlans)));
  struct Phase {
    size_t plans;
    double share;
    double hot;
    double per_busy_disk;
  };
  const Phase phases[] = {
      {plans, 0.35, 0.008, 0.03}, {(plans + 3) / 4, 0.3, 0.02, 0.03}, {(plans + 11) / 12, 0.2, 0.01, 0.01}, {1, 0.15, 0.002, 0.003}};
  // A line with few moves left loses more than it finds by accepting much worse plans.
  constexpr double kMovesForAllHeat = 60'000, kLeastHeat = 0.25;
  const double heat = std::clamp(moves / kMovesForAllHeat, kLeastHeat, 1.0);
  const double end = budget_.remaining() - work;
  double shares = 1;  // of this phase and the next ones
  for (const Phase& phase : phases) {
    Sort();
    if (!lines_.empty() && lines_.front().best.cost <= good_enough_ms * (1 + 1e-9)) break;
    KeepBest(phase.plans);
    if (&phase == phases) {  // every other one
      for (size_t i = 1; i < lines_.size(); i += 2) lines_[i].tidies = true;
    }
    const double phase_end = budget_.remaining() - std::max(0.0, budget_.remaining() - end) * phase.share / shares;
    shares -= phase.share;
    double lines_left = static_cast<double>(lines_.size());
    for (Line& line : lines_) {
      const double work_each = std::max(0.0, budget_.remaining() - phase_end) / lines_left--;
      Annealer::Schedule schedule = {
          .work = work_each, .hot = heat * phase.hot, .cold = 2e-5, .per_busy_disk = phase.per_busy_disk, .tidies = line.tidies};
      if (&phase != phases) {  // both values of `tidies`
        schedule.work /= 2;
        line.best = annealer_.Run(line.best, schedule);
        schedule.tidies ^= true;
      }
      line.best = annealer_.Run(line.best, schedule);
    }
  }
  Sort();
}

}  // namespace lime
