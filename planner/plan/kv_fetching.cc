#include "planner/plan/kv_fetching.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

// Usable share of the link's time, because pieces do not arrive evenly.
constexpr double kShare = 0.9;
// Simulated tokens; enough to use up the layers that are present at the start.
constexpr int kSteps = 3;

double PiecesOfLayer(const Plan& plan, const PlanDevice& device, int64_t layer_pages) {
  return plan.sequences * MeanPositionsAway(plan, device, layer_pages) / static_cast<double>(kKvPiece);
}

// The longest time that one disk reads in a step.
double ReadMs(const Plan& plan) {
  std::vector<double> read_ms(plan.devices.size(), 0);
  for (const Stage& stage : plan.stages) {
    const PlanDevice& device = plan.devices[stage.device];
    for (int p = stage.lo; p < stage.hi; ++p) {
      const PlanPart& part = plan.parts[p];
      if (part.streamed && !part.is_kv() && device.disk_mb_per_ms > 0)
        read_ms[stage.device] += static_cast<double>(part.bytes) / 1e6 / device.disk_mb_per_ms;
    }
  }
  return std::ranges::max(read_ms);
}

// When a token reaches each layer of a device, and the time of a whole step. Both are lower bounds;
// waits for disks are spread evenly over the step.
struct Uses {
  std::vector<double> at_ms;  // by layer
  double step_ms = 0;
  double activations_ms = 0;    // time in which activations use the link from the host
  int64_t layers_of_visit = 0;  // the most of one visit
};

Uses UsesOf(const Plan& plan, int device) {
  Uses uses;
  const int32_t host = plan.devices[device].kv_host;
  for (size_t j = 0; j < plan.stages.size(); ++j) {
    const Stage& stage = plan.stages[j];
    const int64_t before = std::ssize(uses.at_ms);
    for (int p = stage.lo; p < stage.hi; ++p) {
      if (stage.device == device && AsksForKv(plan, p)) {
        uses.at_ms.push_back(uses.step_ms);
      } else if (!AsksForKv(plan, p)) {
        uses.step_ms += plan.parts[p].decode_ms;
      }
    }
    uses.layers_of_visit = std::max(uses.layers_of_visit, std::ssize(uses.at_ms) - before);
    const int32_t next = plan.stages[(j + 1) % plan.stages.size()].device;
    if (next == stage.device) continue;
    const double tx_ms = j + 1 < plan.stages.size() ? plan.decode.tx_ms : 0;
    uses.step_ms += tx_ms + plan.decode.lat_ms;
    if (stage.device == host && next == device) uses.activations_ms += tx_ms * plan.microbatches;
  }
  const double longer = uses.step_ms > 0 ? std::max(1.0, ReadMs(plan) / uses.step_ms) : 1;
  for (double& at_ms : uses.at_ms) at_ms *= longer;
  uses.step_ms *= longer;
  return uses;
}

// Time of the host's answer for one layer.
double AnswerOf(const Plan& plan, int device, int64_t layer_pages) {
  for (int p = 0; p < plan.NumParts(); ++p) {
    if (AsksForKv(plan, p) && plan.stages[StageOf(plan, p)].device == device) return AnswerMs(plan, p, layer_pages);
  }
  return 0;
}

// Whether `count` layers all arrive in time if `depth` fit in memory and each takes `layer_ms` on
// the link.
bool ComeInTime(const Uses& uses, int64_t count, int64_t depth, double layer_ms) {
  const int64_t layers = std::ssize(uses.at_ms);
  std::vector<double> at_ms;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (IsAmong(layer, count, layers)) at_ms.push_back(uses.at_ms[static_cast<size_t>(layer)]);
  }
  if (count <= depth) return true;  // they stay in memory
  // Eq. 8: the link cannot carry so many layers in every step.
  if (static_cast<double>(count) * layer_ms > uses.step_ms) return false;
  const auto use_ms = [&](int64_t i) {
    const int64_t step = i / count;
    return static_cast<double>(step) * uses.step_ms + at_ms[static_cast<size_t>(i % count)];
  };
  double end_ms = 0;
  for (int64_t i = depth; i < kSteps * count; ++i) {
    end_ms = std::max(end_ms, use_ms(i - depth)) + layer_ms;
    if (end_ms > use_ms(i)) return false;
  }
  return true;
}

}  // namespace

double FetchLayerMs(const Plan& plan, int d, int64_t layer_pages) {
  const PlanDevice& device = plan.devices[d];
  if (!HasKvOnHost(device) || device.kv_fetch_mb_per_ms <= 0) return HUGE_VAL;
  return PiecesOfLayer(plan, device, layer_pages) * static_cast<double>(KvPieceBytes(plan)) / 1e6 / device.kv_fetch_mb_per_ms;
}

int64_t LayersInTime(const Plan& plan, int d, int64_t layer_pages) {
  const PlanDevice& device = plan.devices[d];
  if (!HasKvOnHost(device) || device.kv_fetch_pieces == 0 || device.kv_fetch_mb_per_ms <= 0) return 0;
  const int64_t pieces = static_cast<int64_t>(std::ceil(PiecesOfLayer(plan, device, layer_pages)));
  if (pieces == 0) return 0;
  const Uses uses = UsesOf(plan, d);
  // With several micro-batches, a layer and the other layers of its visit stay until the last one
  // has used them.
  const int64_t held = plan.microbatches > 1 ? uses.layers_of_visit - 1 : 0;
  const int64_t depth = (device.kv_fetch_pieces - kKvFetchesUnderWay) / pieces - held;
  if (depth < 1 || uses.at_ms.empty() || uses.step_ms <= uses.activations_ms) return 0;
  const double layer_ms = FetchLayerMs(plan, d, layer_pages) / kShare * uses.step_ms / (uses.step_ms - uses.activations_ms);
  int64_t low = 0, high = std::ssize(uses.at_ms);
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (ComeInTime(uses, middle, depth, layer_ms)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const bool partly = !device.asks_kv || low == std::ssize(uses.at_ms) || AnswerOf(plan, d, layer_pages) >= kLongAnswerMs;
  return partly ? low : std::min(low, depth);
}

}  // namespace lime
