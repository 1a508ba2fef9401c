#include "planner/baselines/baselines.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "planner/baselines/layers.h"
#include "planner/evaluation/evaluator.h"

namespace lime {
namespace {

constexpr double kInfiniteMs = std::numeric_limits<double>::infinity();

FoundPlan Judge(const Instance& instance, const Assignment& assignment, bool reads_once) {
  Evaluator evaluator(instance, reads_once);
  FoundPlan out = {.plan = ToPlan(assignment)};
  out.cost = out.ms_per_step = evaluator.MsPerStep(out.plan);
  out.feasible = std::isfinite(out.ms_per_step);
  out.reads_once = reads_once || instance.microbatches == 1;
  if (!out.feasible) out.reason = absl::StrCat("out of memory: ", evaluator.Infeasibility());
  return out;
}

// Layers in proportion to memory, after subtracting the embedding and the head from their devices.
std::vector<LayerRun> SharesByMemory(const Instance& instance, const LayerView& view) {
  std::vector<double> mem_mb;
  for (const Instance::Device& device : instance.devices) mem_mb.push_back(device.mem_mb);
  mem_mb.front() = std::max(0.0, mem_mb.front() - instance.embed_mb);
  mem_mb.back() = std::max(0.0, mem_mb.back() - view.heads_mb);
  const double total = std::accumulate(mem_mb.begin(), mem_mb.end(), 0.0), layers = static_cast<double>(view.layers.size());
  std::vector<LayerRun> runs;
  double sum = 0;
  int assigned = 0;
  for (int d = 0; d < instance.NumDevices(); ++d) {
    sum += mem_mb[d];
    const int until =
        d + 1 == instance.NumDevices() || total <= 0 ? static_cast<int>(layers) : static_cast<int>(std::lround(layers * sum / total));
    runs.push_back({.device = d, .layers = until - assigned});
    assigned = until;
  }
  return runs;
}

// The dynamic program of EdgeShard for one objective. A state is the set of used devices and the
// number of placed layers.
class ShardProgram {
 public:
  static constexpr double kMaxWork = 2e8;
  // Devices in a row that may be unused, if their order is fixed.
  static constexpr int kMostSkipped = 8;

  ShardProgram(const Instance& instance, const LayerView& view, bool bottleneck)
      : instance_(instance), view_(view), bottleneck_(bottleneck), layers_(static_cast<int>(view.layers.size())) {
    by_speed_.resize(instance.devices.size());
    std::iota(by_speed_.begin(), by_speed_.end(), 0);
    std::stable_sort(by_speed_.begin(), by_speed_.end(),
                     [&](int a, int b) { return LayerCompMs(instance, view, a) < LayerCompMs(instance, view, b); });
    const double devices = instance.NumDevices(), choices = 0.5 * layers_ * layers_;
    any_order_ = devices <= kMaxOrderedDevices && std::exp2(devices) * devices * choices <= kMaxWork;
    too_large_ = !any_order_ && devices * kMostSkipped * choices > 10 * kMaxWork;
    if (too_large_) layers_ = 0;
    states_ = any_order_ ? 1 << instance.NumDevices() : instance.NumDevices() + 1;
    best_.assign(static_cast<size_t>(states_) * (layers_ + 1), {kInfiniteMs, -1, 0});
  }

  // Empty if nothing fits.
  std::vector<LayerRun> Run() {
    if (too_large_) return {};
    At(0, 0).ms = 0;
    for (int state = 0; state < states_; ++state) {
      for (int placed = 0; placed < layers_; ++placed) {
        if (At(state, placed).ms < kInfiniteMs) Extend(state, placed);
      }
    }
    int end = 0;
    for (int state = 0; state < states_; ++state) {
      if (At(state, layers_).ms < At(end, layers_).ms) end = state;
    }
    return At(end, layers_).ms < kInfiniteMs ? Trace(end) : std::vector<LayerRun>{};
  }

 private:
  struct Cell {
    double ms;
    int from;    // state before
    int layers;  // layers of the last device
  };

  Cell& At(int state, int placed) { return best_[static_cast<size_t>(state) * (layers_ + 1) + placed]; }

  void Extend(int state, int placed) {
    if (!any_order_) {
      for (int next = state; next < std::min(state + kMostSkipped, instance_.NumDevices()); ++next)
        Assign(state, placed, by_speed_[next], next + 1);
      return;
    }
    for (int d = 0; d < instance_.NumDevices(); ++d) {
      if ((state >> d & 1) == 0) Assign(state, placed, d, state | 1 << d);
    }
  }

  void Assign(int state, int placed, int device, int next) {
    const double before = At(state, placed).ms;
    double mb = placed == 0 ? instance_.embed_mb : 0, comp_ms = 0;
    const double hop_ms = placed == 0 ? 0 : instance_.net.tx_ms + instance_.net.lat_ms;
    for (int end = placed; end < layers_; ++end) {
      mb += view_.layers[end].mb + view_.layers[end].kv_mb + (end + 1 == layers_ ? view_.heads_mb : 0);
      if (mb > instance_.devices[device].mem_mb + kMemorySlackMb) return;
      const int last = end + 1 == layers_ ? instance_.NumBlocks() : view_.layers[end].hi;
      for (int b = view_.layers[end].lo; b < last; ++b) comp_ms += instance_.devices[device].comp_ms[b];
      const double ms = bottleneck_ ? std::max({before, comp_ms, placed == 0 ? 0 : instance_.net.tx_ms}) : before + hop_ms + comp_ms;
      Cell& cell = At(next, end + 1);
      if (ms < cell.ms) cell = {ms, state, end + 1 - placed};
    }
  }

  std::vector<LayerRun> Trace(int state) {
    std::vector<LayerRun> runs;
    for (int placed = layers_; placed > 0;) {
      const Cell cell = At(state, placed);
      const int device = any_order_ ? std::countr_zero(static_cast<unsigned>(state & ~cell.from)) : by_speed_[state - 1];
      runs.insert(runs.begin(), {.device = device, .layers = cell.layers});
      placed -= cell.layers;
      state = cell.from;
    }
    return runs;
  }

  const Instance& instance_;
  const LayerView& view_;
  bool bottleneck_, any_order_, too_large_;
  int layers_, states_;
  std::vector<int32_t> by_speed_;
  std::vector<Cell> best_;
};

}  // namespace

FoundPlan PlanPipeline(const Instance& instance) {
  const LayerView view = LayersOf(instance);
  return Judge(instance, AssignRuns(instance, view, SharesByMemory(instance, view)), /*reads_once=*/true);
}

FoundPlan PlanPipelineOffload(const Instance& instance) {
  constexpr int64_t kMostReloads = 1 << 19;  // limit because all 48 steps are stored
  if (int64_t{instance.NumBlocks()} * instance.microbatches > kMostReloads) {
    return {.reason = absl::StrCat("a step would read more than ", kMostReloads, " blocks, because every micro-batch reads them again")};
  }
  const LayerView view = LayersOf(instance);
  std::vector<LayerRun> runs = SharesByMemory(instance, view);
  size_t at = 0;
  for (size_t d = 0; d < runs.size(); ++d) {
    double over_mb = -instance.devices[d].mem_mb - kMemorySlackMb;
    if (at == 0 && runs[d].layers > 0) over_mb += instance.embed_mb;
    for (int i = 0; i < runs[d].layers; ++i, ++at) over_mb += view.layers[at].mb + view.layers[at].kv_mb;
    if (at == view.layers.size() && runs[d].layers > 0) over_mb += view.heads_mb;
    if (over_mb <= 0) continue;
    size_t streamed = at - runs[d].layers;
    for (over_mb += view.largest_mb; over_mb > 0 && runs[d].streams_first < runs[d].layers; ++streamed) {
      over_mb -= view.layers[streamed].mb;
      ++runs[d].streams_first;
    }
  }
  return Judge(instance, AssignRuns(instance, view, runs), /*reads_once=*/false);
}

FoundPlan PlanEdgeShard(const Instance& instance) {
  const LayerView view = LayersOf(instance);
  const std::vector<LayerRun> runs = ShardProgram(instance, view, instance.microbatches > 1).Run();
  if (runs.empty()) return {.reason = "out of memory: EdgeShard streams nothing, and no choice of devices holds all layers"};
  return Judge(instance, AssignRuns(instance, view, runs), /*reads_once=*/true);
}

}  // namespace lime
