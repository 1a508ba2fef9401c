#include "planner/search/exhaustive.h"

#include <algorithm>
#include <vector>

#include "planner/evaluation/evaluator.h"
#include "planner/evaluation/quick_evaluator.h"

namespace lime {
namespace {

constexpr double kRounding = 1 - 1e-12;  // margin for rounding in the bounds

class Tree {
 public:
  Tree(const Instance& instance, const Exhaustion& options, SearchBudget& budget)
      : instance_(instance),
        move_cost_(options.move_cost),
        bound_(options.first_token),
        budget_(budget),
        evaluator_(instance),
        quick_(instance),
        devices_(instance.devices.size()) {
    const std::vector<int32_t> begins = UnitBegins(instance, options.granularity);
    begins_unit_.resize(instance.blocks.size());
    for (size_t u = 0; u + 1 < begins.size(); ++u) begins_unit_[begins[u]] = true;
    least_ms_behind_.resize(instance.blocks.size() + 1);
    for (int b = instance.NumBlocks() - 1; b >= 0; --b) {
      double least = std::numeric_limits<double>::infinity();
      for (const Instance::Device& device : instance.devices) least = std::min(least, device.comp_ms[b]);
      least_ms_behind_[b] = least_ms_behind_[b + 1] + least;
    }
    found_.cost = options.incumbent_cost;
    if (bound_ != nullptr) first_token_.emplace(bound_->problem);
    draft_ = AllOn(instance, 0);
  }

  Exhausted Run() {
    found_.complete = Descend(0, 0, 0);
    return found_;
  }

 private:
  struct Device {
    double used_mb = 0;
    double need_mb = 0;   // of the pool
    double stage_mb = 0;  // streamed in the current stage
    double comp_ms = 0;
    double load_ms = 0;
    int loads = 0;
  };

  // Returns false if the budget is used up.
  bool Descend(int b, double path_ms, double moving) {
    if (!budget_.Spend(1)) return false;
    if (b == instance_.NumBlocks()) return Evaluate(moving);
    if (b == 0) return BeginAnywhere();
    const int before = draft_.device[b - 1];
    for (int d = 0; d < instance_.NumDevices(); ++d) {
      if (d != before && !begins_unit_[b]) continue;
      if (d != before && !move_cost_ && IsTwin(d, b)) continue;
      const double hop_ms = d != before ? instance_.net.tx_ms + instance_.net.lat_ms : 0;
      if (!PlaceEitherWay(b, d, path_ms + hop_ms, moving)) return false;
    }
    return true;
  }

  // The device of the first stage holds the embedding, or reads rows.
  bool BeginAnywhere() {
    for (int d = 0; d < instance_.NumDevices(); ++d) {
      if (!move_cost_ && IsTwin(d, 0)) continue;
      for (const bool by_rows : {false, true}) {
        const std::optional<double>& rows_ms = instance_.devices[d].embed_rows_ms;
        if (by_rows && !rows_ms) continue;
        draft_.embedding_by_rows = by_rows;
        devices_[d] = {.used_mb = by_rows ? 0 : instance_.embed_mb, .comp_ms = by_rows ? *rows_ms : 0};
        if (!PlaceEitherWay(0, d, devices_[d].comp_ms, 0)) return false;
        devices_[d] = {};
      }
    }
    return true;
  }

  bool PlaceEitherWay(int b, int d, double before_ms, double moving) {
    const double path_ms = before_ms + instance_.devices[d].comp_ms[b];
    const double moves = move_cost_ && move_cost_->home[b] != d ? moving + move_cost_->Of(instance_.blocks[b]) : moving;
    if ((path_ms + least_ms_behind_[b + 1] + moves) * kRounding >= found_.cost) return true;
    return Place(b, d, false, path_ms, moves) && Place(b, d, true, path_ms, moves);
  }

  // Among equal devices that are not used yet, only the first is tried.
  bool IsTwin(int d, int b) const {
    const auto used = [&](int device) {
      return std::find(draft_.device.begin(), draft_.device.begin() + b, device) != draft_.device.begin() + b;
    };
    if (used(d)) return false;
    for (int twin = 0; twin < d; ++twin) {
      const Instance::Device &x = instance_.devices[twin], &y = instance_.devices[d];
      if (x.mem_mb == y.mem_mb && x.disk_mb_per_ms == y.disk_mb_per_ms && x.disk_lat_ms == y.disk_lat_ms &&
          x.embed_rows_ms == y.embed_rows_ms && x.comp_ms == y.comp_ms && !used(twin)) {
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

  // The same as QuickEvaluator::LeastMs. More blocks never reduce it.
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
    const double cost = evaluator_.MsPerStep(StagesOf(draft_), draft_.streamed, draft_.embedding_by_rows) + moving;
    if (cost < found_.cost && FirstTokenInTime()) {
      found_.cost = cost;
      found_.better = draft_;
    }
    return budget_.Spend(static_cast<double>(Evaluator::kSteps) * instance_.NumBlocks() * instance_.microbatches);
  }

  bool FirstTokenInTime() {
    if (!first_token_) return true;
    const FirstToken first = first_token_->Predict(ToPlan(draft_), bound_->most_ms);
    budget_.Spend(first_token_->work());
    if (first.feasible && first.ms <= bound_->most_ms) return true;
    found_.least_first_token_ms = std::min(found_.least_first_token_ms, first.ms);
    return false;
  }

  const Instance& instance_;
  const std::optional<MoveCost>& move_cost_;
  const FirstTokenBound* bound_;
  SearchBudget& budget_;
  Evaluator evaluator_;
  QuickEvaluator quick_;
  std::optional<FirstTokenPredictor> first_token_;
  std::vector<bool> begins_unit_;
  // Compute time of the blocks from here on, each on its fastest device.
  std::vector<double> least_ms_behind_;
  std::vector<Device> devices_;
  Assignment draft_;
  Exhausted found_;
};

}  // namespace

Exhausted SearchAll(const Instance& instance, const Exhaustion& options, SearchBudget& budget) {
  return Tree(instance, options, budget).Run();
}

}  // namespace lime
