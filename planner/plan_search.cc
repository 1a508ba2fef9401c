#include "planner/plan_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/evaluator.h"
#include "planner/exhaustive.h"
#include "planner/starts.h"

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
    if (best.feasible) Tidy(best);
    if (!best.feasible) best.reason = Reason();
    return best;
  }

 private:
  static constexpr size_t kKept = 24;

  double spent() const { return work_ - budget_.left(); }

  // Keeps the cheapest, all different in cost.
  void Offer(Candidate candidate) {
    const auto cheaper = [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; };
    const auto at = std::lower_bound(kept_.begin(), kept_.end(), candidate, cheaper);
    if (at != kept_.end() && at->cost == candidate.cost) return;
    kept_.insert(at, std::move(candidate));
    if (kept_.size() > kKept) kept_.pop_back();
  }

  void AddStarts() {
    for (const StagePlan& seed : options_.seeds) {
      if (!BeginsAtUnits(seed)) continue;
      Assignment plan = ToAssignment(seed, instance_.NumBlocks());
      const double cost = annealer_.Cost(plan);
      if (cost < Annealer::kDoesNotFit) Offer({plan, cost});
      Offer(annealer_.Repaired(std::move(plan)));
    }
    if (options_.move_cost && !options_.move_cost->MayMove()) return;
    for (int d = 0; d < instance_.NumDevices(); ++d) {
      Assignment alone = {.device = std::vector<int16_t>(instance_.blocks.size(), static_cast<int16_t>(d)),
                          .streamed = std::vector<uint8_t>(instance_.blocks.size())};
      Offer(annealer_.Repaired(std::move(alone)));
      if (!budget_.Spend(1)) return;
    }
    AddUniformStarts();
  }

  bool BeginsAtUnits(const StagePlan& plan) const {
    return std::all_of(plan.stages.begin(), plan.stages.end(),
                       [&](const Stage& stage) { return std::binary_search(unit_begins_.begin(), unit_begins_.end(), stage.lo); });
  }

  // Starts take at most a fifth of the work.
  void AddUniformStarts() {
    std::vector<double> shares = FluidShares(instance_);
    if (shares.empty()) {  // KV alone is too much for a fluid: as much as the devices have
      for (const Instance::Device& device : instance_.devices) shares.push_back(device.mem_mb);
    }
    const std::vector<StreamingStyle> styles = StreamingStyles(instance_);
    const std::vector<std::vector<int32_t>> orders = DeviceOrders(instance_, shares, random_);
    const int units = static_cast<int>(unit_begins_.size()) - 1;
    for (const int rounds : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16}) {
      for (const std::vector<int32_t>& order : orders) {
        if (order.empty() || (rounds > 1 && rounds * static_cast<int>(order.size()) > units)) continue;
        const Assignment plan = UniformRounds(instance_, unit_begins_, shares, order, rounds);
        for (const StreamingStyle& style : styles) {
          if (spent() > 0.2 * work_ || (IsSmall() && spent() > kIncumbentWork) || !budget_.Spend(3.0 * instance_.NumBlocks())) return;
          Assignment styled = plan;
          StreamInStyle(instance_, style, styled);
          Offer(annealer_.Repaired(std::move(styled)));
        }
      }
    }
  }

  // Ever fewer plans, ever longer.
  void Improve(double work) {
    struct Phase {
      size_t plans;
      double share;
      double hot;
    };
    constexpr Phase kPhases[] = {{24, 0.15, 0.02}, {6, 0.25, 0.01}, {2, 0.3, 0.005}, {1, 0.3, 0.001}};
    for (const Phase& phase : kPhases) {
      std::vector<Candidate> plans = kept_;
      if (plans.size() > phase.plans) plans.resize(phase.plans);
      const double work_each = work * phase.share / static_cast<double>(std::max<size_t>(plans.size(), 1));
      for (const Candidate& plan : plans) Offer(annealer_.Run(plan, {.work = work_each, .hot = phase.hot, .cold = 2e-5}));
    }
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
    for (const Candidate& candidate : kept_) {
      if (candidate.cost >= Annealer::kDoesNotFit || (best.feasible && candidate.cost > best.cost * kRounding)) return;
      FoundPlan plan = Exactly(candidate.plan);
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
  std::vector<Candidate> kept_;  // cheapest first
};

}  // namespace

FoundPlan SearchPlan(const Instance& instance, const SearchOptions& options) {
  return Search(instance, options).Run();
}

}  // namespace lime
