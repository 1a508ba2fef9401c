// The neurons that a predictor names for rows of inputs (planner/plan/model/neuron_predictor.h).
//
//   h = round(A x)      to the working dtype
//   z = B h + c         in the order of linear layers
//
// What is said of a row depends on that row alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/base/thread_pool.h"
#include "kernels/cpu/linear/linear.h"
#include "planner/base/dtype.h"
#include "planner/plan/model/neuron_predictor.h"

namespace lime::cpu {

// Scratch memory.
struct PredictorScratch {
  float* low = nullptr;        // [rows, rank]
  std::byte* low_x = nullptr;  // [rows, rank] working dtype
  float* z = nullptr;          // [rows, neurons]
};

// predicted: [rows, neurons], 1 for a neuron that is named, else 0. A z that is NaN names it.
// x: [rows, cols] of the working dtype.  REQUIRES: the workspace is for so many rows, cols and rank
void PredictNeurons(ThreadPool& pool, LinearWorkspace& ws, const PredictorView& predictor, const std::byte* x, DType working, int64_t rows,
                    const PredictorScratch& scratch, uint8_t* predicted);

}  // namespace lime::cpu
