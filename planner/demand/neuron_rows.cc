#include "planner/demand/neuron_rows.h"

#include <algorithm>
#include <cmath>

#include "planner/base/check.h"
#include "planner/demand/divide_places.h"

namespace lime {
namespace {

constexpr int64_t kUses = int64_t{1} << 30;  // shares of hits as integers

// The share of the active neurons that memory has, at each point that was measured.
HitCurve HitsOf(const LayerCalibration& layer, int64_t batch) {
  const double active = ActiveShare(layer, batch);
  if (active <= 0) return HitCurve::Around({}, 0, layer.neurons);
  std::vector<HitPoint> points;
  for (const LoadPoint& point : layer.batches.front().points) {
    const double hits = std::clamp(1 - LoadShare(layer, point.rows, batch) / active, 0.0, 1.0);
    points.push_back({.places = point.rows, .hits = std::llround(hits * static_cast<double>(kUses))});
  }
  return HitCurve::Around(points, kUses, layer.neurons);
}

std::vector<LayerDemand> DemandsOf(std::span<const SparseLayer> layers, int64_t batch, bool whole_steps) {
  std::vector<LayerDemand> demands;
  double longest = 0;  // time to read a neuron, of a byte of its row
  for (const SparseLayer& layer : layers) longest = std::max(longest, layer.read_ms / static_cast<double>(layer.row_bytes));
  for (const SparseLayer& layer : layers) {
    const double uses = ActiveShare(*layer.calibration, batch) * layer.calibration->neurons;
    const int32_t least = whole_steps ? std::max(1, static_cast<int32_t>(std::ceil(uses))) : 1;
    demands.push_back({.hits = HitsOf(*layer.calibration, batch),
                       .unit_bytes = layer.row_bytes,
                       .uses = uses * (layer.read_ms / static_cast<double>(layer.row_bytes) / longest),
                       .least = least});
  }
  return demands;
}

absl::Status CheckLayers(std::span<const SparseLayer> layers) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const double ms = layers[i].read_ms;
    if (layers[i].row_bytes >= 1 && ms > 0 && std::isfinite(ms)) continue;
    return Invalid("neuron rows: a neuron of layer ", i, " has ", layers[i].row_bytes, " bytes and is read in ", ms,
                   " ms, both must be positive");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> DivideNeuronRows(std::span<const SparseLayer> layers, int64_t batch, Bytes budget) {
  if (batch < 1) return Invalid("neuron rows: a batch of ", batch, " sequences, need at least 1");
  LIME_RETURN_IF_ERROR(CheckLayers(layers));
  absl::StatusOr<std::vector<int32_t>> rows = DividePlaces(DemandsOf(layers, batch, /*whole_steps=*/true), budget);
  if (absl::IsResourceExhausted(rows.status())) rows = DividePlaces(DemandsOf(layers, batch, /*whole_steps=*/false), budget);
  LIME_RETURN_IF_ERROR(rows.status());
  return std::vector<int64_t>(rows->begin(), rows->end());
}

double ExpectedNeuronBytes(std::span<const SparseLayer> layers, std::span<const int64_t> rows, int64_t batch) {
  LIME_CHECK_EQ(layers.size(), rows.size());
  double bytes = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerCalibration& layer = *layers[i].calibration;
    bytes += LoadShare(layer, rows[i], batch) * layer.neurons * static_cast<double>(layers[i].row_bytes);
  }
  return bytes;
}

}  // namespace lime
