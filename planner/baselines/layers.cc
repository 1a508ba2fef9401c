#include "planner/baselines/layers.h"

#include <algorithm>
#include <limits>

namespace lime {

LayerView LayersOf(const Instance& instance) {
  LayerView view;
  const std::vector<int32_t> begins = UnitBegins(instance, Granularity::kLayer);
  size_t units = begins.size() - 1;
  while (units > 1 && instance.blocks[begins[units - 1]].kind == Instance::Kind::kHead) --units;
  for (size_t u = 0; u < units; ++u) {
    Layer layer = {.lo = begins[u], .hi = begins[u + 1]};
    for (int b = layer.lo; b < layer.hi; ++b) {
      layer.mb += instance.blocks[b].mb;
      layer.kv_mb += instance.blocks[b].kv_mb;
    }
    view.largest_mb = std::max(view.largest_mb, layer.mb);
    view.largest_kv_mb = std::max(view.largest_kv_mb, layer.kv_mb);
    view.layers.push_back(layer);
  }
  for (int b = begins[units]; b < instance.NumBlocks(); ++b) {
    view.heads.push_back(b);
    view.heads_mb += instance.blocks[b].mb + instance.blocks[b].kv_mb;
  }
  return view;
}

double LayerCompMs(const Instance& instance, const LayerView& view, int device) {
  double ms = 0;
  for (int b = 0; b < view.layers.back().hi; ++b) ms += instance.devices[device].comp_ms[b];
  return ms / static_cast<double>(view.layers.size());
}

double LayerLoadMs(const Instance& instance, const LayerView& view, int device) {
  const Instance::Device& profile = instance.devices[device];
  if (profile.disk_mb_per_ms <= 0) return std::numeric_limits<double>::infinity();
  double ms = 0;
  for (int b = 0; b < view.layers.back().hi; ++b) ms += instance.blocks[b].mb / profile.disk_mb_per_ms + profile.disk_lat_ms;
  return ms / static_cast<double>(view.layers.size());
}

Assignment AssignRuns(const Instance& instance, const LayerView& view, const std::vector<LayerRun>& runs) {
  Assignment plan = AllOn(instance, 0);
  size_t at = 0;
  for (const LayerRun& run : runs) {
    for (int i = 0; i < run.layers && at < view.layers.size(); ++i, ++at) {
      for (int b = view.layers[at].lo; b < view.layers[at].hi; ++b) {
        plan.device[b] = static_cast<int16_t>(run.device);
        plan.streamed[b] = i < run.streams_first;
      }
    }
  }
  for (const int32_t b : view.heads) plan.device[b] = plan.device[b - 1];
  return plan;
}

}  // namespace lime
