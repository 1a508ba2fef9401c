#include "planner/recipes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "planner/unit_counts.h"

namespace lime {
namespace {

using Candidate = Annealer::Candidate;

class RecipeSearch {
 public:
  RecipeSearch(const Instance& instance, const std::vector<int32_t>& unit_begins, Annealer& annealer, SearchBudget& budget, Random& random,
               const std::function<void(const Candidate&, int, bool)>& offer)
      : instance_(instance),
        unit_begins_(unit_begins),
        annealer_(annealer),
        budget_(budget),
        random_(random),
        offer_(offer),
        shares_(FluidShares(instance)),
        styles_(StreamingStyles(instance)),
        counts_(instance, unit_begins),
        least_ms_(styles_.size(), -1.0) {
    if (shares_.empty()) {  // KV alone is too much for a fluid: as much as the devices have
      for (const Instance::Device& device : instance.devices) shares_.push_back(device.mem_mb + 1);
    }
    orders_ = DeviceOrders(instance, std::vector<double>(instance.devices.size(), 1.0), random);
  }

  void Run(double work) {
    const double begin = budget_.left();
    const auto spent = [&] { return begin - budget_.left(); };
    while (spent() < work / 3 && budget_.left() > 0) Sample();
    std::stable_sort(kept_.begin(), kept_.end(), [](const Kept& a, const Kept& b) { return a.cost < b.cost; });
    KeepClimbers();
    while (spent() < work && budget_.left() > 0) {
      for (Kept& kept : kept_) Climb(kept);
    }
  }

 private:
  static constexpr size_t kClimbers = 2;     // of each kind
  static constexpr double kTasteWork = 300;  // of however few blocks
  static constexpr int kRounds[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16};

  struct Kept {
    Recipe recipe;
    double cost;
  };

  int Devices() const { return instance_.NumDevices(); }
  int Units() const { return static_cast<int>(unit_begins_.size()) - 1; }
  const StreamingStyle& AnyStyle() { return styles_[random_.Below(static_cast<int>(styles_.size()))]; }

  double Taste(const Recipe& recipe) {
    std::optional<Assignment> plan = Cook(recipe);
    budget_.Spend(kTasteWork + 8.0 * instance_.NumBlocks());
    if (!plan) return std::numeric_limits<double>::infinity();
    const Candidate candidate = annealer_.Repaired(std::move(*plan));
    offer_(candidate, recipe.rounds, IsCounted(recipe));
    return candidate.cost;
  }

  std::optional<Assignment> Cook(const Recipe& recipe) {
    std::optional<Assignment> plan;
    if (IsCounted(recipe)) {
      const std::vector<UnitCounts> counts = Counts(recipe);
      if (counts.empty()) return std::nullopt;
      plan = counts_.Arrange(counts, recipe.order, recipe.rounds);
    } else {
      plan = UniformRounds(instance_, unit_begins_, recipe.shares, recipe.order, recipe.rounds);
    }
    plan->embedding_by_rows = instance_.devices[plan->device[0]].embed_rows_ms.has_value();
    StreamInStyle(instance_, recipe.styles, *plan);
    return plan;
  }

  std::vector<UnitCounts> Counts(const Recipe& recipe) {
    const auto counts =
        counts_.Share({.limit_ms = recipe.limit_ms, .usable = recipe.shares, .styles = recipe.styles, .order = recipe.order});
    budget_.Spend(counts_.work());
    return counts;
  }

  // The least time in which everything finds a place where all devices stream in one style; infinity where it never does.
  double LeastMs(size_t style) {
    if (least_ms_[style] >= 0) return least_ms_[style];
    Recipe recipe = {
        .shares = std::vector<double>(Devices(), 1.0), .order = orders_.front(), .styles = std::vector(Devices(), styles_[style])};
    const auto fits = [&](double ms) {
      recipe.limit_ms = ms;
      return !Counts(recipe).empty();
    };
    double low = 0, high = 1;
    while (high < 1e12 && !fits(high)) low = high, high *= 2;
    if (high >= 1e12) return least_ms_[style] = std::numeric_limits<double>::infinity();
    while (high > low * 1.002) (fits((low + high) / 2) ? high : low) = (low + high) / 2;
    return least_ms_[style] = high;
  }

  static bool IsCounted(const Recipe& recipe) { return recipe.limit_ms > 0; }

  // The best of those of fluid shares and of those of counts: which kind ends better is not seen yet.
  void KeepClimbers() {
    std::array<size_t, 2> kept = {};
    std::erase_if(kept_, [&](const Kept& each) { return ++kept[IsCounted(each.recipe) ? 1 : 0] > kClimbers; });
  }

  // Numbers of rounds in turn; the best recipe of each and of each kind is kept.
  void Sample() {
    const int rounds = kRounds[next_ / 2 % std::size(kRounds)];
    const bool counted = next_++ % 2 == 0;
    if (rounds > 1 && rounds > Units() / 2) {
      budget_.Spend(10);
      return;
    }
    Recipe recipe = {.shares = shares_,
                     .order = orders_[random_.Below(static_cast<int>(orders_.size()))],
                     .rounds = rounds,
                     .styles = std::vector<StreamingStyle>(Devices(), AnyStyle())};
    if (counted) CountFrom(random_.Below(static_cast<int>(styles_.size())), recipe);
    const double cost = Taste(recipe);
    const auto same = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
      return kept.recipe.rounds == rounds && IsCounted(kept.recipe) == IsCounted(recipe);
    });
    if (same == kept_.end()) {
      kept_.push_back({std::move(recipe), cost});
    } else if (cost < same->cost) {
      *same = {std::move(recipe), cost};
    }
  }

  void CountFrom(size_t style, Recipe& recipe) {
    const double part = random_.Uniform(), least_ms = LeastMs(style);
    if (!std::isfinite(least_ms)) return;
    recipe.limit_ms = least_ms * (1 + 0.2 * part * part);
    recipe.shares.assign(Devices(), 1.0);
    recipe.styles.assign(Devices(), styles_[style]);
  }

  void Climb(Kept& kept) {
    Recipe recipe = kept.recipe;
    Change(recipe);
    if (random_.Chance(30)) Change(recipe);
    const double cost = Taste(recipe);
    if (cost <= kept.cost) kept = {std::move(recipe), cost};
  }

  void Change(Recipe& recipe) {
    const int a = random_.Below(Devices()), b = random_.Below(Devices()), dice = random_.Below(100);
    if (IsCounted(recipe) && dice < 25) {
      recipe.limit_ms *= 1 + 0.04 * (random_.Uniform() - 0.5);
    } else if (IsCounted(recipe) && dice < 50) {
      recipe.shares[a] = random_.Chance(30) ? 1 : recipe.shares[a] * (1 - 0.2 * random_.Uniform() * random_.Uniform());
    } else if (dice < 50) {
      const double part = random_.Uniform(), most = 0.15 * part * part;
      const double moved = random_.Chance(5) ? recipe.shares[a] : std::min(recipe.shares[a], most);
      recipe.shares[a] -= moved;
      recipe.shares[b] += moved;
    } else if (dice < 62) {
      std::swap(recipe.order[a], recipe.order[b]);
    } else if (dice < 72) {
      recipe.rounds = std::clamp(recipe.rounds + (random_.Chance(50) ? 1 : -1), 1, std::max(1, Units() / 2));
    } else if (dice < 94) {
      StreamingStyle& style = recipe.styles[a];
      if (random_.Chance(50)) {
        style = AnyStyle();
      } else {
        style.pool_mb = std::max(style.pool_mb, style.largest_mb) * std::exp2(2 * random_.Uniform() - 1);
      }
    } else {
      std::fill(recipe.styles.begin(), recipe.styles.end(), AnyStyle());
    }
  }

  const Instance& instance_;
  const std::vector<int32_t>& unit_begins_;
  Annealer& annealer_;
  SearchBudget& budget_;
  Random& random_;
  const std::function<void(const Candidate&, int, bool)>& offer_;
  std::vector<double> shares_;
  std::vector<StreamingStyle> styles_;
  CountProgram counts_;
  std::vector<double> least_ms_;  // by style; negative: not known yet
  std::vector<std::vector<int32_t>> orders_;
  std::vector<Kept> kept_;
  size_t next_ = 0;
};

}  // namespace

void SearchRecipes(const Instance& instance, const std::vector<int32_t>& unit_begins, Annealer& annealer, SearchBudget& budget, double work,
                   Random& random, const std::function<void(const Annealer::Candidate&, int, bool)>& offer) {
  RecipeSearch(instance, unit_begins, annealer, budget, random, offer).Run(work);
}

}  // namespace lime
