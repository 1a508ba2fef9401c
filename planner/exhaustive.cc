#include "planner/exhaustive.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "planner/evaluator.h"
#include "planner/quick_evaluator.h"

namespace lime {
namespace {

constexpr double kRounding = 1 - 1e-12;  // of the sums that the bounds are made of

class Tree {
 public:
  Tree(const Instance& instance, Granularity granularity, const std::optional<MoveCost>& move_cost, double incumbent_cost,
       SearchBudget& budget)
      : instance_(instance),
        move_cost_(move_cost),
        budget_(budget),
        evaluator_(instance),
        quick_(instance),
        devices_(instance.devices.size()) {
    const std::vector<int32_t> begins = UnitBegins(instance, granularity);
    begins_unit_.resize(instance.blocks.size());
    for (size_t u = 0; u + 1 < begins.size(); ++u) begins_unit_[begins[u]] = true;
    least_ms_behind_.resize(instance.blocks.size() + 1);
    for (int b = instance.NumBlocks() - 1; b >= 0; --b) {
      double least = std::numeric_limits<double>::infinity();
      for (const Instance::Device& device : instance.devices) least = std::min(least, device.comp_ms[b]);
      least_ms_behind_[b] = least_ms_behind_[b + 1] + least;
    }
    found_.cost = incumbent_cost;
    draft_.device.resize(instance.blocks.size());
    draft_.streamed.resize(instance.blocks.size());
  }

  Exhausted Run() {
    found_.complete = Descend(0, 0, 0);
    return found_;
  }

 private:
  struct Device {
    double used_mb = 0;
    double need_mb = 0;   // of the pool
    double stage_mb = 0;  // streamed in the stage that is open
    double comp_ms = 0;
    double load_ms = 0;
    int loads = 0;
  };

  // False when the budget is spent.
  bool Descend(int b, double path_ms, double moving) {
    if (!budget_.Spend(1)) return false;
    if (b == instance_.NumBlocks()) return Evaluate(moving);
    const int before = b > 0 ? draft_.device[b - 1] : -1;
    for (int d = 0; d < instance_.NumDevices(); ++d) {
      if (d != before && !begins_unit_[b]) continue;
      if (d != before && !move_cost_ && IsTwin(d, b)) continue;
      const double hop_ms = b > 0 && d != before ? instance_.net.tx_ms + instance_.net.lat_ms : 0;
      const double here_ms = path_ms + hop_ms + instance_.devices[d].comp_ms[b];
      const double moves = move_cost_ && move_cost_->home[b] != d ? moving + move_cost_->Of(instance_.blocks[b]) : moving;
      if ((here_ms + least_ms_behind_[b + 1] + moves) * kRounding >= found_.cost) continue;
      for (const bool streamed : {false, true}) {
        if (!Place(b, d, streamed, here_ms, moves)) return false;
      }
    }
    return true;
  }

  // Of devices that are alike and not yet used only the first is tried.
  bool IsTwin(int d, int b) const {
    const auto used = [&](int device) {
      return std::find(draft_.device.begin(), draft_.device.begin() + b, device) != draft_.device.begin() + b;
    };
    if (used(d)) return false;
    for (int twin = 0; twin < d; ++twin) {
      const Instance::Device &x = instance_.devices[twin], &y = instance_.devices[d];
      if (x.mem_mb == y.mem_mb && x.disk_mb_per_ms == y.disk_mb_per_ms && x.disk_lat_ms == y.disk_lat_ms && x.comp_ms == y.comp_ms &&
          !used(twin)) {
        return true;
      }
    }
    return false;
  }

  bool Place(int b, int d, bool streamed, double path_ms, double moving) {
    const Instance::Block& block = instance_.blocks[b];
    const Instance::Device& profile = instance_.devices[d];
    if (streamed && profile.disk_mb_per_ms <= 0) return true;
    Device& device = devices_[d];
    const Device saved = device;
    if (b == 0) device.used_mb += instance_.embed_mb;
    if (b == 0 || draft_.device[b - 1] != d) device.stage_mb = 0;
    device.used_mb += block.kv_mb + (streamed ? 0 : block.mb);
    device.comp_ms += profile.comp_ms[b];
    if (streamed) {
      device.stage_mb = instance_.microbatches > 1 ? device.stage_mb + block.mb : block.mb;
      device.need_mb = std::max(device.need_mb, device.stage_mb);
      device.load_ms += block.mb / profile.disk_mb_per_ms + profile.disk_lat_ms;
      ++device.loads;
    }
    bool goes_on = true;
    if (device.used_mb + device.need_mb <= profile.mem_mb + 2 * kMemorySlackMb &&
        LeastMs(profile, device) + moving * kRounding < found_.cost) {
      draft_.device[b] = static_cast<int16_t>(d);
      draft_.streamed[b] = streamed;
      goes_on = Descend(b + 1, path_ms, moving);
    }
    device = saved;
    return goes_on;
  }

  // As QuickEvaluator::LeastMs; more blocks never make it less.
  double LeastMs(const Instance::Device& profile, const Device& device) const {
    constexpr double kCounted = Evaluator::kSteps - 1 - Evaluator::kSettledStep;
    const double microbatches = instance_.microbatches;
    const double comp_ms = device.comp_ms * (microbatches - (microbatches - 1) / kCounted);
    if (device.loads == 0) return comp_ms * kRounding;
    const double ahead_ms = (profile.mem_mb - device.used_mb) / profile.disk_mb_per_ms + (4 * device.loads + 4) * profile.disk_lat_ms;
    return std::max(comp_ms, device.load_ms - ahead_ms / kCounted) * kRounding;
  }

  bool Evaluate(double moving) {
    constexpr double kQuickRounding = 1 + 1e-6;
    const bool hopeless = quick_.MsPerStep(draft_, found_.cost - moving) + moving > found_.cost * kQuickRounding;
    if (!budget_.Spend(quick_.work())) return false;
    if (hopeless) return true;
    const double cost = evaluator_.MsPerStep(StagesOf(draft_), draft_.streamed) + moving;
    if (cost < found_.cost) {
      found_.cost = cost;
      found_.better = draft_;
    }
    return budget_.Spend(static_cast<double>(Evaluator::kSteps) * instance_.NumBlocks() * instance_.microbatches);
  }

  const Instance& instance_;
  const std::optional<MoveCost>& move_cost_;
  SearchBudget& budget_;
  Evaluator evaluator_;
  QuickEvaluator quick_;
  std::vector<bool> begins_unit_;
  std::vector<double> least_ms_behind_;  // computing of the blocks from here on, each where it is fastest
  std::vector<Device> devices_;
  Assignment draft_;
  Exhausted found_;
};

}  // namespace

Exhausted SearchAll(const Instance& instance, Granularity granularity, const std::optional<MoveCost>& move_cost, double incumbent_cost,
                    SearchBudget& budget) {
  return Tree(instance, granularity, move_cost, incumbent_cost, budget).Run();
}

}  // namespace lime
