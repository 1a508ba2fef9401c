#include "planner/baselines/closed_form.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "planner/base/check.h"

namespace lime {
namespace {

bool Alike(const LayerTimes& a, const LayerTimes& b) {
  const auto near = [](double x, double y) { return x == y || std::abs(x - y) <= 1e-6 * std::max(x, y); };
  return near(a.comp_ms, b.comp_ms) && near(a.load_ms, b.load_ms);
}

// The layers of one device. Each is the sum of its blocks.
absl::StatusOr<std::vector<LayerTimes>> LayerTimesOf(const Instance& instance, const Instance::Device& device) {
  std::vector<LayerTimes> layers;
  for (int b = 0; b < instance.NumBlocks(); ++b) {
    const Instance::Block& block = instance.blocks[b];
    if (block.kind == Instance::Kind::kHead) {
      return Invalid("instance.blocks[", b, "]: the closed form covers layers only; leave the head out");
    }
    if (b == 0 || block.layer != instance.blocks[b - 1].layer || block.kind == Instance::Kind::kLayer) layers.emplace_back();
    layers.back().comp_ms += device.comp_ms[b];
    const double read_ms = device.disk_mb_per_ms > 0 ? block.mb / device.disk_mb_per_ms : std::numeric_limits<double>::infinity();
    layers.back().load_ms += read_ms + device.disk_lat_ms;
  }
  return layers;
}

double UncoveredMs(const OffloadSlotProblem& problem, size_t device, int64_t k) {
  const double count = static_cast<double>(k);
  return std::max(0.0, count * problem.load_ms[device] - (problem.c_ms - count * problem.comp_ms[device]));
}

// The most slots that a device can take with at most `limit_ms` uncovered.
int64_t MostOffloadSlots(const OffloadSlotProblem& problem, size_t device, double limit_ms) {
  int64_t fits = 0, fails = std::min(problem.kmax[device], problem.need) + 1;
  while (fails - fits > 1) {
    const int64_t middle = fits + (fails - fits) / 2;
    (UncoveredMs(problem, device, middle) <= limit_ms ? fits : fails) = middle;
  }
  return fits;
}

bool Suffices(const OffloadSlotProblem& problem, double limit_ms) {
  int64_t missing = problem.need;
  for (size_t i = 0; i < problem.kmax.size() && missing > 0; ++i) missing -= MostOffloadSlots(problem, i, limit_ms);
  return missing <= 0;
}

}  // namespace

absl::StatusOr<std::vector<LayerTimes>> UniformLayerTimes(const Instance& instance) {
  std::vector<LayerTimes> times;
  for (const Instance::Device& device : instance.devices) {
    LIME_ASSIGN_OR_RETURN(const std::vector<LayerTimes> layers, LayerTimesOf(instance, device));
    for (size_t i = 1; i < layers.size(); ++i) {
      if (Alike(layers[i], layers[0])) continue;
      return Invalid("instance: layer ", i, " has another time than layer 0 on ", DeviceLabel(instance, static_cast<int>(times.size())),
                     "; the closed form needs equal layers");
    }
    times.push_back(layers[0]);
  }
  return times;
}

ClosedForm EvaluateClosedForm(const std::vector<LayerTimes>& layers, double hop_ms, const UniformPlan& plan) {
  ClosedForm out;
  for (const int32_t i : plan.order) {
    const auto [comp_ms, load_ms] = layers[i];
    out.segment_critical_path_ms += (plan.resident[i] + plan.streamed[i]) * comp_ms;
    if (plan.streamed[i] > 0) out.segment_load_cycle_ms = std::max(out.segment_load_cycle_ms, plan.streamed[i] * (load_ms + comp_ms));
  }
  out.segment_critical_path_ms += static_cast<double>(plan.order.size()) * hop_ms;
  out.total_ms = plan.segments * std::max(out.segment_critical_path_ms, out.segment_load_cycle_ms);
  out.uncovered_ms = plan.segments * std::max(0.0, out.segment_load_cycle_ms - out.segment_critical_path_ms);
  return out;
}

// The least sufficient limit is a value of UncoveredMs. Non-negative doubles have the order of
// their bits, so bisection over the bits ends at exactly this value.
OffloadSlotShares ShareOffloadSlots(const OffloadSlotProblem& problem) {
  OffloadSlotShares out;
  LIME_CHECK(problem.load_ms.size() == problem.kmax.size() && problem.comp_ms.size() == problem.kmax.size());
  double highest = 0;
  int64_t room = 0;
  for (size_t i = 0; i < problem.kmax.size(); ++i) {
    room += std::min(problem.kmax[i], problem.need);
    room = std::min(room, problem.need);
    highest = std::max(highest, UncoveredMs(problem, i, problem.kmax[i]));
  }
  if (room < problem.need) return out;
  uint64_t low = 0, high = std::bit_cast<uint64_t>(highest);  // `high` suffices
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (Suffices(problem, std::bit_cast<double>(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  out.feasible = true;
  out.uncovered_ms = std::bit_cast<double>(high);
  int64_t missing = problem.need;
  for (size_t i = 0; i < problem.kmax.size(); ++i) {
    out.k.push_back(std::min(missing, MostOffloadSlots(problem, i, out.uncovered_ms)));
    missing -= out.k.back();
  }
  return out;
}

}  // namespace lime
