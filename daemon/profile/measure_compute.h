// Measures how long a model's blocks take on this device's backend, by rows and context.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/device/backend_names.h"
#include "planner/plan/device/device_profile.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

struct MeasureComputeOptions {
  int num_threads = 1;
  // For all points together, approximately: each point takes a few steps, however long these are.
  double seconds = 5;
  Bytes memory = 0;                   // at most, for measuring; points that need more are left out
  std::string backend = kCpuBackend;  // a name in kernels/registry/registry.h
  std::string numerics = "auto";
  // Uses logits as a decode step does: that counts as overhead of the step. May be empty.
  std::function<void(std::span<const float>)> after_step;
  // In seconds of work: done, and in all. May be empty.
  std::function<void(double done, double total)> progress;
  std::string* numerics_id = nullptr;  // set to the kernels' id
  const std::atomic<bool>* cancelled = nullptr;
};

// Measures every kind of block with 1, 2, 4, 8, 16 rows (sequences that decode) and 64, 256, 512
// rows (chunks of one prompt), at contexts of 64, 512, 2,048 and 8,192 positions, as far as the
// model's positions and the memory go. Weights are random: a stand-in with the model's geometry
// (scale_model.h) runs whole steps, so that every block finds the caches as in a real step. Goes
// round the points, so that all see the same noise; the lower quartile of the steps is free of it.
// ResourceExhausted if not even one decoding row fits, Cancelled when asked to stop.
absl::StatusOr<ModelCompute> MeasureCompute(const ModelSpec& model, const MeasureComputeOptions& options);

}  // namespace lime
