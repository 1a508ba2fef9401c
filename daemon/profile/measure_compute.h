// Times of a model's blocks on this device's backend, by rows and context, for predictions.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/backend_names.h"
#include "planner/plan/device_profile.h"
#include "planner/plan/model_spec.h"

namespace lime {

struct MeasureComputeOptions {
  int num_threads = 1;
  double seconds = 5;                 // for all points together, about: every point takes a few steps, however long they are
  Bytes memory = 0;                   // most that may be held for it; points that need more are left out
  std::string backend = kCpuBackend;  // of kernels/registry/registry.h
  std::string numerics = "auto";
  // What a decode step does with its logits, so that its time counts as overhead of the step. May be empty.
  std::function<void(std::span<const float>)> after_step;
  // Seconds' worth of work done and in all. May be empty.
  std::function<void(double done, double total)> progress;
  std::string* numerics_id = nullptr;  // set to that of the kernels
  const std::atomic<bool>* cancelled = nullptr;
};

// Measures every kind of block at 1, 2, 4, 8, 16 rows (sequences that decode) and 64, 256, 512 (chunks of one prompt), at contexts of 64,
// 512, 2,048 and 8,192 positions, as far as the model's positions and the memory go. Weights are random: a stand-in of the model's geometry
// (scale_model.h) runs whole steps, so that every block finds the caches as it will in a real one. Rounds over the points, so that all
// see the same noise, of which the lower quartile of the steps is free.
// ResourceExhausted when not even one decoding row fits, Cancelled when asked to stop.
absl::StatusOr<ModelCompute> MeasureCompute(const ModelSpec& model, const MeasureComputeOptions& options);

}  // namespace lime
