#include "planner/search/recipes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "planner/search/dispatch.h"
#include "planner/search/half_counts.h"

namespace lime {
namespace {

using Candidate = Annealer::Candidate;

class RecipeSearch {
 public:
  RecipeSearch(const Instance& instance, const std::vector<int32_t>& unit_begins, Annealer& annealer, SearchBudget& budget, Random& random,
               const std::function<void(const Candidate&, int, RecipeKind)>& offer)
      : instance_(instance),
        unit_begins_(unit_begins),
        annealer_(annealer),
        budget_(budget),
        random_(random),
        offer_(offer),
        shares_(FluidShares(instance)),
        styles_(StreamingStyles(instance)),
        counts_(instance, unit_begins),
        mixed_(instance, unit_begins),
        dispatcher_(instance, mixed_),
        least_ms_(styles_.size(), -1.0) {
    if (shares_.empty()) {  // KV alone is too much for fluid shares: use memory sizes
      for (const Instance::Device& device : instance.devices) shares_.push_back(device.mem_mb + 1);
    }
    orders_ = DeviceOrders(instance, std::vector<double>(instance.devices.size(), 1.0), random);
  }

  void Run(double work) {
    const double begin = budget_.remaining();
    const auto spent = [&] { return begin - budget_.remaining(); };
    while (spent() < work / 3 && budget_.remaining() > 0) Sample();
    std::stable_sort(survivors_.begin(), survivors_.end(), [](const Survivor& a, const Survivor& b) { return a.cost < b.cost; });
    KeepClimbers();
    const double sampled = spent();
    while (spent() < work && budget_.remaining() > 0 && !survivors_.empty()) {
      const double done = (spent() - sampled) / (work - sampled);
      if (done > 0.25) KeepWithin(done > 0.75 ? 1.02 : done > 0.5 ? 1.06 : 1.12);
      heat_ = kClimbHeat * std::max(0.0, 1 - done / 0.8);
      for (Survivor& survivor : survivors_) Climb(survivor);
    }
  }

 private:
  static constexpr size_t kClimbers = 2;     // per kind
  static constexpr double kTasteWork = 300;  // at least, for few blocks
  static constexpr int kRounds[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16};
  static constexpr int kMixedRounds[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
  static constexpr double kMixedPool = 1.25;  // in blocks
  static constexpr double kClimbHeat = 0.01;

  struct Survivor {
    Recipe recipe;
    double cost;
  };

  int Devices() const { return instance_.NumDevices(); }
  int Units() const { return static_cast<int>(unit_begins_.size()) - 1; }
  const StreamingStyle& AnyStyle() { return styles_[random_.Below(static_cast<int>(styles_.size()))]; }

  double Taste(Recipe& recipe) {
    std::optional<Assignment> plan = Cook(recipe);
    budget_.Spend(kTasteWork + 8.0 * instance_.NumBlocks());
    if (!plan) return std::numeric_limits<double>::infinity();
    const Candidate candidate = annealer_.Repaired(std::move(*plan));
    offer_(candidate, IsMixed(recipe) ? Fingerprint(recipe.mixed) : recipe.rounds, KindOf(recipe));
    return candidate.cost;
  }

  std::optional<Assignment> Cook(Recipe& recipe) {
    std::optional<Assignment> plan;
    if (IsMixed(recipe)) return CookMixed(recipe);
    if (IsCounted(recipe)) {
      const std::vector<HalfCounts> counts = Counts(recipe);
      if (counts.empty()) return std::nullopt;
      plan = counts_.Arrange(counts, recipe.order, recipe.rounds);
    } else {
      plan = UniformRounds(instance_, unit_begins_, recipe.shares, recipe.order, recipe.rounds);
    }
    plan->embedding_by_rows = instance_.devices[plan->device[0]].embed_rows_ms.has_value();
    StreamInStyle(instance_, recipe.styles, *plan);
    return plan;
  }

  // If not all units fit in that time, pools become less deep until they do.
  std::optional<Assignment> CookMixed(Recipe& recipe) {
    for (int tries = 0; recipe.mixed.empty(); ++tries) {
      if (tries == 3) return std::nullopt;
      if (tries > 0) {
        for (double& pool : recipe.pools) pool = 1 + 0.5 * (pool - 1);
      }
      recipe.mixed = MixedShares(recipe);
    }
    Assignment plan;
    if (recipe.rounds > 0) {
      plan = mixed_.Arrange(recipe.mixed, recipe.order, recipe.rounds, recipe.seed);
    } else {
      plan = dispatcher_.Arrange(
          {.shares = recipe.mixed, .order = recipe.order, .limit_ms = recipe.limit_ms, .ahead = recipe.ahead, .seed = recipe.seed});
      budget_.Spend(dispatcher_.work());
    }
    plan.embedding_by_rows = instance_.devices[plan.device[0]].embed_rows_ms.has_value();
    return plan;
  }

  std::vector<HalfCounts> Counts(const Recipe& recipe) {
    auto counts = counts_.Share({.limit_ms = recipe.limit_ms, .usable = recipe.shares, .styles = recipe.styles, .order = recipe.order});
    budget_.Spend(counts_.work());
    return counts;
  }

  std::vector<MixedCountProgram::Share> MixedShares(const Recipe& recipe) {
    auto shares = mixed_.Shares({.limit_ms = recipe.limit_ms, .pools = recipe.pools, .order = recipe.order});
    budget_.Spend(mixed_.work());
    return shares;
  }

  // The least time in which all units fit if every device streams what suits it; infinity if never.
  double LeastMixedMs() {
    if (least_mixed_ms_ >= 0) return least_mixed_ms_;
    Recipe recipe = {.order = orders_.front(), .pools = std::vector<double>(Devices(), kMixedPool)};
    return least_mixed_ms_ = LeastMs([&](double ms) {
             recipe.limit_ms = ms;
             return !MixedShares(recipe).empty();
           });
  }

  static double LeastMs(const std::function<bool(double)>& fits) {
    double low = 0, high = 1;
    while (high < 1e12 && !fits(high)) low = high, high *= 2;
    if (high >= 1e12) return std::numeric_limits<double>::infinity();
    while (high > low * 1.002) (fits((low + high) / 2) ? high : low) = (low + high) / 2;
    return high;
  }

  // The least time in which all units fit if all devices stream in one style; infinity if never.
  double LeastMs(size_t style) {
    if (least_ms_[style] >= 0) return least_ms_[style];
    Recipe recipe = {
        .shares = std::vector<double>(Devices(), 1.0), .order = orders_.front(), .styles = std::vector(Devices(), styles_[style])};
    return least_ms_[style] = LeastMs([&](double ms) {
             recipe.limit_ms = ms;
             return !Counts(recipe).empty();
           });
  }

  // Identifies what every device holds and streams, without the positions in the model. Plans with
  // equal fingerprints are of one kind.
  static int Fingerprint(const std::vector<MixedCountProgram::Share>& shares) {
    uint64_t mixed = 0;
    for (const MixedCountProgram::Share& share : shares) {
      for (const int count : {share.units[0], share.units[1], share.streamed[0], share.streamed[1]}) {
        mixed = Random(mixed + static_cast<uint64_t>(count)).Next();
      }
    }
    return static_cast<int>(mixed % (1 << 20));
  }

  static bool IsCounted(const Recipe& recipe) { return recipe.limit_ms > 0; }
  static bool IsMixed(const Recipe& recipe) { return !recipe.pools.empty(); }
  static RecipeKind KindOf(const Recipe& recipe) {
    if (IsMixed(recipe)) return recipe.rounds > 0 ? RecipeKind::kMixed : RecipeKind::kDispatched;
    return IsCounted(recipe) ? RecipeKind::kCounted : RecipeKind::kFluid;
  }

  // Keeps the best of every kind, because it is not known yet which kind ends better.
  void KeepClimbers() {
    std::array<size_t, 4> survivor = {};
    std::erase_if(survivors_, [&](const Survivor& each) { return ++survivor[static_cast<size_t>(KindOf(each.recipe))] > kClimbers; });
  }

  // Drops recipes that are too far behind the best to catch up with the remaining work.
  void KeepWithin(double most) {
    double least = std::numeric_limits<double>::infinity();
    for (const Survivor& survivor : survivors_) least = std::min(least, survivor.cost);
    std::erase_if(survivors_, [&](const Survivor& survivor) { return survivor.cost > least * most; });
  }

  // Tries numbers of rounds in turn. Keeps the best recipe of each number and kind.
  void Sample() {
    constexpr RecipeKind kKinds[] = {RecipeKind::kCounted, RecipeKind::kFluid, RecipeKind::kMixed, RecipeKind::kDispatched};
    const size_t kinds = mixed_.applies() ? 4 : 2;
    const RecipeKind kind = kKinds[next_ % kinds];
    const size_t turn = next_++ / kinds % std::size(kRounds);
    const int rounds = kind == RecipeKind::kDispatched ? 0 : kind == RecipeKind::kMixed ? kMixedRounds[turn] : kRounds[turn];
    if (rounds > 1 && rounds > Units() / 2) {
      budget_.Spend(10);
      return;
    }
    Recipe recipe = {.shares = shares_,
                     .order = orders_[random_.Below(static_cast<int>(orders_.size()))],
                     .rounds = rounds,
                     .styles = std::vector<StreamingStyle>(Devices(), AnyStyle())};
    if (kind == RecipeKind::kCounted) CountFrom(random_.Below(static_cast<int>(styles_.size())), recipe);
    if ((kind == RecipeKind::kMixed || kind == RecipeKind::kDispatched) && !MixFrom(recipe)) return;
    const double cost = Taste(recipe);
    const auto same = std::find_if(survivors_.begin(), survivors_.end(), [&](const Survivor& survivor) {
      return survivor.recipe.rounds == rounds && KindOf(survivor.recipe) == KindOf(recipe);
    });
    if (same == survivors_.end()) {
      survivors_.push_back({std::move(recipe), cost});
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

  bool MixFrom(Recipe& recipe) {
    const double part = random_.Uniform(), least_ms = LeastMixedMs();
    if (!std::isfinite(least_ms)) return budget_.Spend(10), false;
    recipe.limit_ms = least_ms * (recipe.rounds == 0 ? 0.97 + 0.08 * part : 1 + 0.1 * part * part);
    recipe.ahead = 4 * random_.Uniform();
    recipe.pools.assign(Devices(), 1 + 2 * (kMixedPool - 1) * random_.Uniform());
    recipe.seed = random_.Next();
    return true;
  }

  void Climb(Survivor& survivor) {
    Recipe recipe = survivor.recipe;
    Change(recipe);
    if (random_.Chance(30)) Change(recipe);
    const double cost = Taste(recipe);
    if (cost <= survivor.cost * (1 - heat_ * std::log(1 - random_.Uniform()))) survivor = {std::move(recipe), cost};
  }

  void ChangeMixed(Recipe& recipe) {
    const int a = random_.Below(Devices()), b = random_.Below(Devices()), dice = random_.Below(100);
    if (dice < 20) {
      recipe.seed = random_.Next();
      return;
    }
    if (dice < 35 && recipe.rounds == 0) {
      recipe.ahead = std::clamp(recipe.ahead + 2 * (random_.Uniform() - 0.5), 0.0, 12.0);
      return;
    }
    if (dice < 35) {
      recipe.rounds = std::clamp(static_cast<int>(std::lround(recipe.rounds * (0.7 + 0.7 * random_.Uniform()))), 1, std::max(1, Units()));
      return;
    }
    recipe.mixed.clear();
    if (dice < 55) {
      recipe.limit_ms *= 1 + 0.04 * (random_.Uniform() - 0.6);
    } else if (dice < 70) {
      std::swap(recipe.order[a], recipe.order[b]);
    } else if (dice < 95) {
      recipe.pools[a] = std::clamp(recipe.pools[a] + 0.6 * (random_.Uniform() - 0.5), 1.0, 4.0);
    } else {
      std::fill(recipe.pools.begin(), recipe.pools.end(), 1 + 2 * (kMixedPool - 1) * random_.Uniform());
    }
  }

  void Change(Recipe& recipe) {
    if (KindOf(recipe) == RecipeKind::kMixed) return ChangeMixed(recipe);
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
  const std::function<void(const Candidate&, int, RecipeKind)>& offer_;
  std::vector<double> shares_;
  std::vector<StreamingStyle> styles_;
  CountProgram counts_;
  MixedCountProgram mixed_;
  Dispatcher dispatcher_;
  std::vector<double> least_ms_;  // by style; negative: unknown
  double least_mixed_ms_ = -1;
  double heat_ = 0;
  std::vector<std::vector<int32_t>> orders_;
  std::vector<Survivor> survivors_;
  size_t next_ = 0;
};

}  // namespace

void SearchRecipes(const Instance& instance, const std::vector<int32_t>& unit_begins, Annealer& annealer, SearchBudget& budget, double work,
                   Random& random, const std::function<void(const Annealer::Candidate&, int, RecipeKind)>& offer) {
  RecipeSearch(instance, unit_begins, annealer, budget, random, offer).Run(work);
}

}  // namespace lime
