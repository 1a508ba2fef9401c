// An instance as whole layers, the way the baselines and the paper's algorithm see it.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/assignment.h"
#include "planner/plan/instance.h"

namespace lime {

struct Layer {
  int32_t lo = 0, hi = 0;  // blocks
  double mb = 0, kv_mb = 0;
};

// In order; a head is not among them.
struct LayerView {
  std::vector<Layer> layers;
  std::vector<int32_t> heads;  // blocks behind the layers that live with the last one
  double largest_mb = 0;       // weights of the largest layer
  double largest_kv_mb = 0;
  double heads_mb = 0;
};

LayerView LayersOf(const Instance& instance);

// Mean computing of a layer on a device, and reading it (infinity without a disk).
double LayerCompMs(const Instance& instance, const LayerView& view, int device);
double LayerLoadMs(const Instance& instance, const LayerView& view, int device);

// Layers, one run after another, then the heads where the last run is. `streams_first` of each run are streamed.
struct LayerRun {
  int32_t device = 0;
  int32_t layers = 0;
  int32_t streams_first = 0;
};
Assignment AssignRuns(const Instance& instance, const LayerView& view, const std::vector<LayerRun>& runs);

}  // namespace lime
