#include "planner/plan/kv_fetching.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

constexpr double kShare = 0.9;  // of the link's time: pieces do not come evenly
constexpr int kSteps = 3;       // of a token, in which what the room had at first is used up

double PiecesOfLayer(const Plan& plan, const PlanDevice& device, int64_t layer_pages) {
  return plan.sequences * MeanPositionsAway(plan, device, layer_pages) / static_cast<double>(kKvPiece);
}

// The disk that reads longest for a step.
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

// When a token comes to each layer of a device, and how long it takes in all: at least, with waits for disks spread evenly over its way.
struct Uses {
  std::vector<double> at_ms;  // by layer
  double step_ms = 0;
  double activations_ms = 0;    // of it, the way from the host has them
  int64_t layers_of_visit = 0;  // at most
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

// Of the host about a layer.
double AnswerOf(const Plan& plan, int device, int64_t layer_pages) {
  for (int p = 0; p < plan.NumParts(); ++p) {
    if (AsksForKv(plan, p) && plan.stages[StageOf(plan, p)].device == device) return AnswerMs(plan, p, layer_pages);
  }
  return 0;
}

// Whether so many layers come in time, `depth` of which have room; each takes the link so long.
bool ComeInTime(const Uses& uses, int64_t count, int64_t depth, double layer_ms) {
  const int64_t layers = std::ssize(uses.at_ms);
  std::vector<double> at_ms;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (IsAmong(layer, count, layers)) at_ms.push_back(uses.at_ms[static_cast<size_t>(layer)]);
  }
  if (count <= depth) return true;                                         // they stay
  if (static_cast<double>(count) * layer_ms > uses.step_ms) return false;  // Eq. 8: step after step, whatever the room had at first
  const auto use_ms = [&](int64_t i) { return static_cast<double>(i / count) * uses.step_ms + at_ms[static_cast<size_t>(i % count)]; };
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
  // With several micro-batches a layer stays until the last has used it, and those of its visit with it.
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
