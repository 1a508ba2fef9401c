#include "kernels/cpu/predict_neurons.h"

#include <algorithm>

#include "planner/base/float_bits.h"

namespace lime::cpu {

void PredictNeurons(ThreadPool& pool, LinearWorkspace& ws, const PredictorView& predictor, const std::byte* x, DType working, int64_t rows,
                    const PredictorScratch& scratch, uint8_t* predicted) {
  const Matrix a{.rows = predictor.rank, .cols = predictor.cols, .dtype = working, .data = predictor.a};
  const LinearTask low{.weight = &a, .out = scratch.low, .out_stride = predictor.rank};
  Linear(pool, ws, x, working, rows, predictor.cols, {&low, 1});
  WithWorkingType(working, [&](auto type) {
    using T = decltype(type);
    std::transform(scratch.low, scratch.low + rows * predictor.rank, reinterpret_cast<T*>(scratch.low_x),
                   [](float value) { return FromFloat<T>(value); });
  });
  const Matrix b{.rows = predictor.neurons, .cols = predictor.rank, .dtype = working, .data = predictor.b};
  const LinearTask all{.weight = &b, .bias = predictor.c, .out = scratch.z, .out_stride = predictor.neurons};
  Linear(pool, ws, scratch.low_x, working, rows, predictor.rank, {&all, 1});
  std::transform(scratch.z, scratch.z + rows * predictor.neurons, predicted,
                 [limit = predictor.limit](float z) { return static_cast<uint8_t>(z <= limit ? 0 : 1); });
}

}  // namespace lime::cpu
