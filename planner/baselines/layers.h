// An instance as whole layers, for the baselines and the paper's algorithm.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/evaluation/assignment.h"
#include "planner/plan/instance/instance.h"

namespace lime {

struct Layer {
  int32_t lo = 0, hi = 0;  // blocks
  double mb = 0, kv_mb = 0;
};

// In order, without a head.
struct LayerView {
  std::vector<Layer> layers;
  std::vector<int32_t> heads;  // blocks after the layers, on the device of the last layer
  double largest_mb = 0;       // weights of the largest layer
  double largest_kv_mb = 0;
  double heads_mb = 0;
};

LayerView LayersOf(const Instance& instance);

// Mean time to compute, and to read, a layer on a device (infinity without a disk).
double LayerCompMs(const Instance& instance, const LayerView& view, int device);
double LayerLoadMs(const Instance& instance, const LayerView& view, int device);

// Assigns runs of consecutive layers, then the heads to the device of the last run. The first
// `streams_first` layers of each run stream.
struct LayerRun {
  int32_t device = 0;
  int32_t layers = 0;
  int32_t streams_first = 0;
};
Assignment AssignRuns(const Instance& instance, const LayerView& view, const std::vector<LayerRun>& runs);

}  // namespace lime
