// A predictor of the neurons of a sparse MLP that are active: two small matrices and a bias for each
// layer, trained on text ("LLM in a flash", Alizadeh et al., 2023).
//
//   z = B (A x) + c      x: what the first projection of the MLP multiplies
//
// A neuron is predicted if z > limit. What a predictor says of a row follows from that row alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lime {

// Of one layer, wherever its memory is. The memory outlives the view. Numbers are of the working dtype.
struct PredictorView {
  int64_t neurons = 0, cols = 0, rank = 0;
  const std::byte* a = nullptr;  // [rank, cols]
  const std::byte* b = nullptr;  // [neurons, rank]
  const std::byte* c = nullptr;  // [neurons]
  float limit = 0;               // 0: a probability of one half
};

}  // namespace lime
