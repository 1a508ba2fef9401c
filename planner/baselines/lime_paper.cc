#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/base/random.h"
#include "planner/baselines/baselines.h"
#include "planner/baselines/closed_form.h"
#include "planner/baselines/layers.h"
#include "planner/evaluation/evaluator.h"
#include "planner/search/starts.h"

namespace lime {
namespace {

// The share of `total` in round s of S, spread evenly.
int Share(int total, int s, int rounds) {
  return static_cast<int>(int64_t{total} * (s + 1) / rounds - int64_t{total} * s / rounds);
}

class PaperPlanner {
 public:
  PaperPlanner(const Instance& instance, SearchBudget& budget)
      : instance_(instance), budget_(budget), evaluator_(instance), view_(LayersOf(instance)) {
    for (int d = 0; d < instance.NumDevices(); ++d) {
      comp_ms_.push_back(LayerCompMs(instance, view_, d));
      load_ms_.push_back(LayerLoadMs(instance, view_, d));
    }
  }

  FoundPlan Run() {
    Random random(1);
    for (const std::vector<int32_t>& order : DeviceOrders(instance_, std::vector<double>(instance_.devices.size(), 1.0), random)) {
      if (!TryOrder(order)) break;
    }
    if (!best_.feasible) best_.reason = "Algorithm 1 finds no plan of whole layers and whole slots";
    return best_;
  }

 private:
  int Layers() const { return static_cast<int>(view_.layers.size()); }

  // Returns false if the budget is used up.
  bool TryOrder(const std::vector<int32_t>& order) {
    order_ = order;
    // Step 1.
    int remaining = Layers();
    held_.assign(order.size(), 0);
    room_mb_.assign(order.size(), 0);
    const double layer_mb = view_.largest_mb + view_.largest_kv_mb;
    for (size_t i = 0; i < order.size(); ++i) {
      room_mb_[i] = instance_.devices[order[i]].mem_mb + kMemorySlackMb - (i == 0 ? instance_.embed_mb : 0) -
                    (i + 1 == order.size() ? view_.heads_mb : 0);
      const double fit = layer_mb > 0 ? std::floor(std::max(0.0, room_mb_[i]) / layer_mb) : Layers();
      held_[i] = static_cast<int>(std::min<double>(fit, Layers()));
      remaining -= held_[i];
    }
    if (remaining <= 0) return TryResident();
    // Step 2.
    const int devices = static_cast<int>(order.size());
    const int most = std::min(remaining + 1, (Layers() + devices - 1) / devices);
    for (int rounds = 2; rounds <= most; ++rounds) {
      if (!TryRounds(rounds, remaining)) return false;
    }
    return true;
  }

  // One segment. Removes surplus layers from the slowest devices.
  bool TryResident() {
    std::vector<int> layers = held_;
    std::vector<size_t> slowest_first(order_.size());
    std::iota(slowest_first.begin(), slowest_first.end(), 0);
    std::stable_sort(slowest_first.begin(), slowest_first.end(),
                     [&](size_t a, size_t b) { return comp_ms_[order_[a]] > comp_ms_[order_[b]]; });
    int surplus = std::accumulate(layers.begin(), layers.end(), -Layers());
    for (const size_t i : slowest_first) {
      const int off = std::min(surplus, layers[i]);
      layers[i] -= off;
      surplus -= off;
    }
    std::vector<LayerRun> runs;
    for (size_t i = 0; i < order_.size(); ++i) runs.push_back({.device = order_[i], .layers = layers[i]});
    return Judge(AssignRuns(instance_, view_, runs));
  }

  // Steps 2 to 5 for one S.
  bool TryRounds(int rounds, int remaining) {
    const int gained = rounds - 1, need = (remaining + gained - 1) / gained;
    OffloadSlotProblem slots = {.need = need};
    for (size_t i = 0; i < order_.size(); ++i) {
      const double spare_mb = room_mb_[i] - held_[i] * (view_.largest_mb + view_.largest_kv_mb);
      const double kv_mb = gained * view_.largest_kv_mb;
      const double most = kv_mb > 0 ? std::floor(spare_mb / kv_mb) : need;
      const bool reads = std::isfinite(load_ms_[order_[i]]);
      slots.load_ms.push_back(reads ? load_ms_[order_[i]] : 0);
      slots.comp_ms.push_back(comp_ms_[order_[i]]);
      slots.kmax.push_back(reads ? static_cast<int64_t>(std::clamp<double>(most, 0, held_[i])) : 0);
    }
    slots.c_ms = SegmentMs(rounds, std::vector<int64_t>(order_.size(), 0), remaining);
    OffloadSlotShares shares;
    // C depends on the devices that compute the gained layers.
    for (int pass = 0; pass < 3; ++pass) {
      shares = ShareOffloadSlots(slots);
      if (!shares.feasible) return budget_.Spend(100);
      slots.c_ms = SegmentMs(rounds, shares.k, 0);
    }
    return Judge(Refined(Uniform(rounds, remaining, shares.k)));
  }

  // C: the compute time of all layers in one segment, and a hop per device. `unplaced` layers count
  // as on the mean device.
  double SegmentMs(int rounds, const std::vector<int64_t>& slots, int unplaced) const {
    double ms = 0, mean = 0;
    for (size_t i = 0; i < order_.size(); ++i) {
      ms += (held_[i] + static_cast<double>(slots[i]) * (rounds - 1)) * comp_ms_[order_[i]];
      mean += comp_ms_[order_[i]] / static_cast<double>(order_.size());
    }
    return (ms + unplaced * mean) / rounds + static_cast<double>(order_.size()) * (instance_.net.tx_ms + instance_.net.lat_ms);
  }

  // Step 5: spreads layers evenly over the segments. If slots have more places than layers, the
  // slots of the slowest disk get fewer.
  Assignment Uniform(int rounds, int remaining, const std::vector<int64_t>& slots) {
    std::vector<int> streamed(order_.size()), resident(order_.size());
    int surplus = -remaining;
    for (size_t i = 0; i < order_.size(); ++i) {
      streamed[i] = static_cast<int>(slots[i]) * rounds;
      resident[i] = held_[i] - static_cast<int>(slots[i]);
      surplus += static_cast<int>(slots[i]) * (rounds - 1);
    }
    for (; surplus > 0; --surplus) {
      size_t slowest = 0;
      const auto cycle_ms = [&](size_t i) { return streamed[i] > 0 ? streamed[i] * (load_ms_[order_[i]] + comp_ms_[order_[i]]) : -1; };
      for (size_t i = 1; i < order_.size(); ++i) slowest = cycle_ms(i) > cycle_ms(slowest) ? i : slowest;
      --streamed[slowest];
    }
    std::vector<LayerRun> runs;
    for (int s = 0; s < rounds; ++s) {
      for (size_t i = 0; i < order_.size(); ++i) {
        const int streams = Share(streamed[i], s, rounds);
        runs.push_back({.device = order_[i], .layers = streams + Share(resident[i], rounds - 1 - s, rounds), .streams_first = streams});
      }
    }
    return AssignRuns(instance_, view_, runs);
  }

  // Step 4: while the slowest device has free memory besides its slots, half of one of its
  // offloaded layers becomes resident: the MLP half if possible.
  Assignment Refined(Assignment plan) {
    std::vector<double> spare_mb(instance_.devices.size(), 0.0), cycle_ms(instance_.devices.size(), 0.0);
    Measure(plan, spare_mb, cycle_ms);
    while (true) {
      const size_t slowest = std::max_element(cycle_ms.begin(), cycle_ms.end()) - cycle_ms.begin();
      int resident = -1;
      for (int b = 0; b < instance_.NumBlocks(); ++b) {
        const bool fits = plan.streamed[b] && plan.device[b] == static_cast<int>(slowest) && instance_.blocks[b].mb <= spare_mb[slowest];
        if (fits && (resident < 0 || instance_.blocks[b].mb > instance_.blocks[resident].mb)) resident = b;
      }
      if (cycle_ms[slowest] <= 0 || resident < 0) return plan;
      plan.streamed[resident] = 0;
      spare_mb[slowest] -= instance_.blocks[resident].mb;
      cycle_ms[slowest] -= CycleMs(slowest, resident);
    }
  }

  double CycleMs(size_t device, int block) const {
    const Instance::Device& profile = instance_.devices[device];
    return instance_.blocks[block].mb / profile.disk_mb_per_ms + profile.disk_lat_ms + profile.comp_ms[block];
  }

  // The free memory of each device after resident blocks, KV and slots (the most it streams in one
  // segment), and its load cycle.
  void Measure(const Assignment& plan, std::vector<double>& spare_mb, std::vector<double>& cycle_ms) {
    std::vector<double> slots_mb(instance_.devices.size(), 0.0);
    for (size_t d = 0; d < spare_mb.size(); ++d) spare_mb[d] = instance_.devices[d].mem_mb;
    spare_mb[plan.device[0]] -= instance_.embed_mb;
    double visit_mb = 0;
    for (int b = 0; b < instance_.NumBlocks(); ++b) {
      const int d = plan.device[b];
      if (b == 0 || plan.device[b - 1] != d) visit_mb = 0;
      spare_mb[d] -= instance_.blocks[b].kv_mb + (plan.streamed[b] ? 0 : instance_.blocks[b].mb);
      if (!plan.streamed[b]) continue;
      visit_mb += instance_.blocks[b].mb;
      slots_mb[d] = std::max(slots_mb[d], visit_mb);
      cycle_ms[d] += CycleMs(d, b);
    }
    for (size_t d = 0; d < spare_mb.size(); ++d) spare_mb[d] -= slots_mb[d];
  }

  bool Judge(const Assignment& assignment) {
    StagePlan plan = ToPlan(assignment);
    const double ms = evaluator_.MsPerStep(plan);
    if (ms < (best_.feasible ? best_.ms_per_step : std::numeric_limits<double>::infinity())) {
      best_ = {.feasible = true, .plan = std::move(plan), .ms_per_step = ms, .cost = ms};
    }
    return budget_.Spend(static_cast<double>(Evaluator::kSteps) * instance_.NumBlocks() * instance_.microbatches);
  }

  const Instance& instance_;
  SearchBudget& budget_;
  Evaluator evaluator_;
  const LayerView view_;
  std::vector<double> comp_ms_, load_ms_;  // of a layer, by device
  std::vector<int32_t> order_;
  std::vector<int> held_;        // whole layers, by index in the order
  std::vector<double> room_mb_;  // by index in the order
  FoundPlan best_;
};

}  // namespace

FoundPlan PlanLimePaper(const Instance& instance, SearchBudget& budget) {
  return PaperPlanner(instance, budget).Run();
}

}  // namespace lime
