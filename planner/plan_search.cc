#include "planner/plan_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/evaluator.h"
#include "planner/exhaustive.h"
#include "planner/recipes.h"

namespace lime {
namespace {

using Candidate = Annealer::Candidate;

constexpr double kShareOfLimit = 0.5;  // of the time limit that the work is made for
constexpr double kMaxTimeLimitMs = 3'600'000;

// To have something to compare with before looking at every plan.
constexpr double kIncumbentWork = 10 * SearchBudget::kWorkPerMs;

class Search {
 public:
  Search(const Instance& instance, const SearchOptions& options)
      : instance_(instance),
        options_(options),
        work_(std::min(options.max_work, std::min(options.time_limit_ms, kMaxTimeLimitMs) * kShareOfLimit * SearchBudget::kWorkPerMs)),
        budget_(work_, options.time_limit_ms, options.elapsed_ms),
        annealer_(instance, options.granularity, options.move_cost, budget_, options.seed),
        exact_(instance),
        random_(options.seed),
        unit_begins_(UnitBegins(instance, options.granularity)) {}

  FoundPlan Run() {
    FoundPlan best;
    AddStarts();
    if (options_.exhaustive && IsSmall()) {
      Improve(std::min(0.02 * work_, kIncumbentWork));
      Settle(best);
      Exhaust(best);
    }
    if (!best.optimal) {
      Improve(0.95 * budget_.left());
      Settle(best);
    }
    KeepToSeeds(best);
    if (best.feasible) Tidy(best);
    if (!best.feasible) best.reason = Reason();
    return best;
  }

 private:
  static constexpr size_t kMostPlans = 24, kMostAlike = 4;
  static constexpr int kSeed = -1, kAlone = 0;  // kinds of starts that are not rounds

  // A line of plans, each improved from the one before, begun at a start of some kind: the number of its rounds, or those above.
  struct Line {
    Candidate best;
    int kind = 0;
  };

  // Keeps the cheapest of each kind, all different in cost.
  void Offer(Candidate candidate, int kind) {
    size_t alike = 0;
    for (const Line& line : lines_) {
      if (line.best.cost == candidate.cost) return;
      alike += line.kind == kind ? 1 : 0;
    }
    lines_.push_back({std::move(candidate), kind});
    if (alike < kMostAlike) return;
    auto worst = lines_.end() - 1;
    for (auto line = lines_.begin(); line != lines_.end(); ++line) {
      if (line->kind == kind && line->best.cost > worst->best.cost) worst = line;
    }
    lines_.erase(worst);
  }

  void SortLines() {
    std::stable_sort(lines_.begin(), lines_.end(), [](const Line& a, const Line& b) { return a.best.cost < b.best.cost; });
  }

  void AddStarts() {
    for (const StagePlan& seed : options_.seeds) {
      if (!BeginsAtUnits(seed)) continue;
      Assignment plan = ToAssignment(seed, instance_.NumBlocks());
      const double cost = annealer_.Cost(plan);
      if (cost < Annealer::kDoesNotFit) Offer({plan, cost}, kSeed);
      Offer(annealer_.Repaired(std::move(plan)), kSeed);
    }
    if (options_.move_cost && !options_.move_cost->MayMove()) return;
    for (int d = 0; d < instance_.NumDevices(); ++d) {
      Assignment alone = {.device = std::vector<int16_t>(instance_.blocks.size(), static_cast<int16_t>(d)),
                          .streamed = std::vector<uint8_t>(instance_.blocks.size())};
      Offer(annealer_.Repaired(std::move(alone)), kAlone);
      if (!budget_.Spend(1)) return;
    }
    const double work = IsSmall() ? std::min(kIncumbentWork, 0.2 * work_) : 0.25 * work_;
    SearchRecipes(instance_, unit_begins_, annealer_, budget_, work, random_,
                  [&](const Candidate& plan, int rounds) { Offer(plan, rounds); });
  }

  bool BeginsAtUnits(const StagePlan& plan) const {
    return std::all_of(plan.stages.begin(), plan.stages.end(),
                       [&](const Stage& stage) { return std::binary_search(unit_begins_.begin(), unit_begins_.end(), stage.lo); });
  }

  bool IsGoodEnough() const {
    return std::any_of(lines_.begin(), lines_.end(),
                       [&](const Line& line) { return line.best.cost <= options_.good_enough_ms * (1 + 1e-9); });
  }

  // Ever fewer lines, ever longer.
  void Improve(double work) {
    const double moves = work / (4.0 * instance_.NumBlocks() + 100);
    const size_t plans = static_cast<size_t>(std::clamp(moves / 6000, 2.0, static_cast<double>(kMostPlans)));
    struct Phase {
      size_t plans;
      double share;
      double hot;
    };
    for (const Phase& phase : {Phase{plans, 0.35, 0.008}, {(plans + 3) / 4, 0.3, 0.02}, {(plans + 11) / 12, 0.2, 0.01}, {1, 0.15, 0.002}}) {
      SortLines();
      if (IsGoodEnough()) break;
      if (lines_.size() > phase.plans) lines_.resize(phase.plans);
      const double work_each = work * phase.share / static_cast<double>(std::max<size_t>(lines_.size(), 1));
      for (Line& line : lines_) line.best = annealer_.Run(line.best, {.work = work_each, .hot = phase.hot, .cold = 2e-5});
    }
    SortLines();
  }

  FoundPlan Exactly(const Assignment& assignment) {
    FoundPlan out = {.plan = ToPlan(assignment)};
    out.ms_per_step = exact_.MsPerStep(out.plan);
    out.feasible = std::isfinite(out.ms_per_step);
    out.cost = out.ms_per_step;
    for (size_t b = 0; options_.move_cost && b < assignment.device.size(); ++b) {
      if (options_.move_cost->home[b] != assignment.device[b]) out.cost += options_.move_cost->Of(instance_.blocks[b]);
    }
    return out;
  }

  // The best of what is kept, if it is better than `best`. The quick evaluation has ordered them but for rounding.
  void Settle(FoundPlan& best) {
    constexpr double kRounding = 1 + 1e-6;
    SortLines();
    for (const auto& [candidate, kind] : lines_) {
      if (candidate.cost >= Annealer::kDoesNotFit || (best.feasible && candidate.cost > best.cost * kRounding)) return;
      FoundPlan plan = Exactly(candidate.plan);
      if (plan.feasible && (!best.feasible || plan.cost < best.cost)) best = std::move(plan);
    }
  }

  // The quick evaluation rounds otherwise, so a seed may be better by a hair than what seemed as good.
  void KeepToSeeds(FoundPlan& best) {
    for (const StagePlan& seed : options_.seeds) {
      if (!BeginsAtUnits(seed)) continue;
      FoundPlan plan = Exactly(ToAssignment(seed, instance_.NumBlocks()));
      if (plan.feasible && (!best.feasible || plan.cost < best.cost)) best = std::move(plan);
    }
  }

  // Keeps resident what streams for nothing.
  void Tidy(FoundPlan& best) {
    constexpr double kTidyWork = 500 * SearchBudget::kWorkPerMs;
    const double trial = static_cast<double>(Evaluator::kSteps) * instance_.NumBlocks() * instance_.microbatches;
    double work = std::min(kTidyWork, options_.max_work);
    Assignment plan = ToAssignment(best.plan, instance_.NumBlocks());
    for (const int32_t block : std::vector<int32_t>(best.plan.streamed)) {
      if ((work -= trial) < 0) return;
      plan.streamed[block] = 0;
      const FoundPlan tidier = Exactly(plan);
      if (tidier.feasible && tidier.ms_per_step <= best.ms_per_step) {
        best.plan = tidier.plan;
        best.ms_per_step = tidier.ms_per_step;
        best.cost = tidier.cost;
      } else {
        plan.streamed[block] = 1;
      }
    }
  }

  bool IsSmall() const {
    constexpr double kMostPlans = 1L << 32;
    return std::pow(2.0 * instance_.NumDevices(), instance_.NumBlocks()) <= kMostPlans;
  }

  void Exhaust(FoundPlan& best) {
    constexpr double kExhaustWork = 800 * SearchBudget::kWorkPerMs;
    SearchBudget budget(std::min(kExhaustWork, work_), options_.time_limit_ms, options_.elapsed_ms);
    const double incumbent = best.feasible ? best.cost : std::numeric_limits<double>::infinity();
    const Exhausted all = SearchAll(instance_, options_.granularity, options_.move_cost, incumbent, budget);
    if (all.better) best = Exactly(*all.better);
    best.optimal = all.complete;
  }

  std::string Reason() {
    double have_mb = 0, need_mb = instance_.embed_mb;
    for (const Instance::Device& device : instance_.devices) have_mb += device.mem_mb;
    for (const Instance::Block& block : instance_.blocks) need_mb += block.kv_mb;
    return absl::StrCat("no plan fits: the devices have ", have_mb, " MB together, the KV cache and the embedding need ", need_mb,
                        " MB beside a pool for the streamed blocks on every device that streams");
  }

  const Instance& instance_;
  const SearchOptions& options_;
  const double work_;
  SearchBudget budget_;
  Annealer annealer_;
  Evaluator exact_;
  Random random_;
  const std::vector<int32_t> unit_begins_;
  std::vector<Line> lines_;
};

}  // namespace

FoundPlan SearchPlan(const Instance& instance, const SearchOptions& options) {
  return Search(instance, options).Run();
}

}  // namespace lime
