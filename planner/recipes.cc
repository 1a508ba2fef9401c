#include "planner/recipes.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lime {
namespace {

using Candidate = Annealer::Candidate;

class RecipeSearch {
 public:
  RecipeSearch(const Instance& instance, const std::vector<int32_t>& unit_begins, Annealer& annealer, SearchBudget& budget, Random& random,
               const std::function<void(const Candidate&, int)>& offer)
      : instance_(instance),
        unit_begins_(unit_begins),
        annealer_(annealer),
        budget_(budget),
        random_(random),
        offer_(offer),
        shares_(FluidShares(instance)),
        styles_(StreamingStyles(instance)) {
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
    if (kept_.size() > kClimbers) kept_.resize(kClimbers);
    while (spent() < work && budget_.left() > 0) {
      for (Kept& kept : kept_) Climb(kept);
    }
  }

 private:
  static constexpr size_t kClimbers = 4;
  static constexpr int kRounds[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16};

  struct Kept {
    Recipe recipe;
    double cost;
  };

  int Devices() const { return instance_.NumDevices(); }
  int Units() const { return static_cast<int>(unit_begins_.size()) - 1; }
  const StreamingStyle& AnyStyle() { return styles_[random_.Below(static_cast<int>(styles_.size()))]; }

  double Taste(const Recipe& recipe) {
    const Candidate candidate = annealer_.Repaired(Cook(instance_, unit_begins_, recipe));
    budget_.Spend(3.0 * instance_.NumBlocks());
    offer_(candidate, recipe.rounds);
    return candidate.cost;
  }

  // Numbers of rounds in turn; the best recipe of each is kept.
  void Sample() {
    const int rounds = kRounds[next_++ % std::size(kRounds)];
    if (rounds > 1 && rounds > Units() / 2) {
      budget_.Spend(10);
      return;
    }
    Recipe recipe = {.shares = shares_,
                     .order = orders_[random_.Below(static_cast<int>(orders_.size()))],
                     .rounds = rounds,
                     .styles = std::vector<StreamingStyle>(Devices(), AnyStyle())};
    const double cost = Taste(recipe);
    const auto same = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.recipe.rounds == rounds; });
    if (same == kept_.end()) {
      kept_.push_back({std::move(recipe), cost});
    } else if (cost < same->cost) {
      *same = {std::move(recipe), cost};
    }
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
    if (dice < 50) {
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
  const std::function<void(const Candidate&, int)>& offer_;
  std::vector<double> shares_;
  std::vector<StreamingStyle> styles_;
  std::vector<std::vector<int32_t>> orders_;
  std::vector<Kept> kept_;
  size_t next_ = 0;
};

}  // namespace

Assignment Cook(const Instance& instance, const std::vector<int32_t>& unit_begins, const Recipe& recipe) {
  Assignment plan = UniformRounds(instance, unit_begins, recipe.shares, recipe.order, recipe.rounds);
  plan.embedding_by_rows = instance.devices[plan.device[0]].embed_rows_ms.has_value();
  StreamInStyle(instance, recipe.styles, plan);
  return plan;
}

void SearchRecipes(const Instance& instance, const std::vector<int32_t>& unit_begins, Annealer& annealer, SearchBudget& budget, double work,
                   Random& random, const std::function<void(const Annealer::Candidate&, int)>& offer) {
  RecipeSearch(instance, unit_begins, annealer, budget, random, offer).Run(work);
}

}  // namespace lime
