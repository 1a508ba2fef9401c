#include "planner/problem/neuron_demand.h"

#include <algorithm>
#include <cmath>

#include "planner/base/check.h"
#include "planner/demand/sparse_mlp.h"
#include "planner/plan/sparse_parts.h"

namespace lime {
namespace {

// Fixed times of bursts on a virtual disk, where nothing was measured.
constexpr double kAssumedBurstMs = 0.1, kAssumedReadMs = 0.0084;
constexpr Bytes kLargeRead = 1 * kMiB;  // longest read of neurons
constexpr int64_t kSizes = 16;          // from the size of the first point of the line to that of the second

}  // namespace

std::optional<BurstCost> BurstCostOf(const DeviceProfile& profile) {
  if (profile.disk.empty()) return std::nullopt;
  const auto ms_of = [&](Bytes bytes) { return 1000 * static_cast<double>(bytes) / profile.DiskRate(bytes, kNeuronReadDepth); };
  const double large_bytes_per_ms = profile.DiskRate(kLargeRead, kNeuronReadDepth) / 1000;
  if (!(large_bytes_per_ms > 0)) return std::nullopt;
  if (profile.bursts) return profile.bursts;
  const Bytes small = profile.disk.front().read_bytes, larger = small * kSizes;
  if (small > kMostSmallRead) return BurstCost{.burst_ms = kAssumedBurstMs, .read_ms = kAssumedReadMs, .bytes_per_ms = large_bytes_per_ms};
  const double small_ms = ms_of(small), larger_ms = ms_of(larger);
  BurstCost cost{.bytes_per_ms = large_bytes_per_ms};
  if (larger_ms > small_ms) cost.bytes_per_ms = static_cast<double>(larger - small) / (larger_ms - small_ms);
  cost.read_ms = std::max(0.0, small_ms - static_cast<double>(small) / cost.bytes_per_ms);
  cost.burst_ms = std::max(0.0, profile.DiskLatencyMs(small, 1) - small_ms);
  return cost;
}

double NeuronsPerRead(const BlockSpec& mlp, const NeuronPlace& place, double load_share) {
  const BundleLayout layout = LayoutOf(mlp);
  if (layout.stride % kBundleReadAlign != 0) return 1;
  const double beside = place.on_path ? place.calibration->path_neurons_per_read : place.calibration->neurons_per_read;
  const double longest = std::max(1.0, static_cast<double>(kLargeRead / layout.stride));
  const double at_random = load_share < 1 ? 1 / (1 - load_share) : longest;
  return std::clamp(std::max(beside, at_random), 1.0, longest);
}

double NeuronReadMs(const BlockSpec& mlp, const NeuronPlace& place, double load_share, const BurstCost& burst) {
  const BundleLayout layout = LayoutOf(mlp);
  const double neurons = NeuronsPerRead(mlp, place, load_share);
  const double bytes =
      static_cast<double>(layout.SlotBytes(FirstRecordPart(place.certified))) + (neurons - 1) * static_cast<double>(layout.stride);
  return (burst.read_ms + bytes / burst.bytes_per_ms) / neurons;
}

namespace {

NeuronDemand DemandOfLoads(const BlockSpec& mlp, const NeuronPlace& place, int64_t batch, const NeuronTimes& times, double load_share) {
  const LayerCalibration& layer = *place.calibration;
  const auto neurons = static_cast<double>(layer.neurons);
  const BundleLayout layout = LayoutOf(mlp);
  NeuronDemand demand{.active = ActiveShare(layer, batch) * neurons, .loads = load_share * neurons};
  const double per_read = NeuronsPerRead(mlp, place, load_share);
  demand.reads = demand.loads / per_read;
  const double read_bytes =
      static_cast<double>(layout.SlotBytes(FirstRecordPart(place.certified))) + (per_read - 1) * static_cast<double>(layout.stride);
  demand.bytes = demand.reads * read_bytes;
  const auto call_ms = [&](double computed) { return computed > 0 ? times.call_ms + times.dense_ms * computed / neurons : 0; };
  // Of a micro-batch that reads anything, which happens with this probability.
  const double any = std::min(1.0, demand.reads);
  const double held_ms = call_ms(demand.active - demand.loads), new_ms = any * times.call_ms + times.dense_ms * demand.loads / neurons;
  demand.compute_ms = times.decide_ms + held_ms + new_ms;
  if (any <= 0) return demand;
  const SparseStep step{.held_ms = held_ms,
                        .new_neurons = demand.loads / any,
                        .neurons_per_read = per_read,
                        .bundle_bytes = static_cast<Bytes>(read_bytes / per_read),
                        .region_bytes = layer.neurons * layout.stride,
                        .sequential_bytes_per_ms = times.sequential_bytes_per_ms};
  demand.io_ms = any * ReadMs(step, times.burst);
  demand.wait_ms = any * (StepMs(step, times.burst) - held_ms);
  return demand;
}

// Memory of a run, as it fills.
class FillingRows {
 public:
  FillingRows(const NeuronPlace& place, int64_t batch) : place_(place), batch_(batch) {}

  // The share of the neurons that a step loads.
  double LoadShare() const { return WindowLoadShare(*place_.calibration, std::min(place_.rows, std::lround(held_)), place_.masks, batch_); }
  // As many steps load as much.
  void Step(int64_t steps) {
    held_ = std::min(static_cast<double>(place_.rows),
                     held_ + static_cast<double>(steps) * LoadShare() * static_cast<double>(place_.calibration->neurons));
  }

  // Calls visit(steps) for groups of steps that count as equal, which are larger after many.
  template <typename Visit>
  void Go(int64_t steps, const Visit& visit) {
    constexpr int64_t kGroups = 16;  // in which memory has at most 1 + 1/16 times the steps behind it
    for (int64_t done = 0; done < steps;) {
      const int64_t group = std::min(steps - done, 1 + done / kGroups);
      visit(group);
      Step(group);
      done += group;
    }
  }

 private:
  const NeuronPlace& place_;
  const int64_t batch_;
  double held_ = 0;  // neurons
};

}  // namespace

NeuronDemand DemandOfNeurons(const BlockSpec& mlp, const NeuronPlace& place, int64_t batch, const NeuronTimes& times) {
  if (place.steps == 0) return DemandOfLoads(mlp, place, batch, times, WindowLoadShare(*place.calibration, place.rows, place.masks, batch));
  FillingRows rows(place, batch);
  rows.Go(std::min(place.copied_tokens, place.masks), [](int64_t) {});
  NeuronDemand mean;
  rows.Go(place.steps, [&](int64_t steps) {
    const NeuronDemand demand = DemandOfLoads(mlp, place, batch, times, rows.LoadShare());
    const double share = static_cast<double>(steps) / static_cast<double>(place.steps);
    for (double NeuronDemand::*figure : {&NeuronDemand::active, &NeuronDemand::loads, &NeuronDemand::reads, &NeuronDemand::bytes,
                                         &NeuronDemand::io_ms, &NeuronDemand::compute_ms, &NeuronDemand::wait_ms})
      mean.*figure += share * demand.*figure;
  });
  return mean;
}

}  // namespace lime
