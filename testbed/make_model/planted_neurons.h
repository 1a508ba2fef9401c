// Plants the embedding and the MLPs of an OPT model, so that its neurons are active as those of
// trained ReLU models: few of them, mostly those of the tokens before, some much oftener than others.
// So the reads of "LLM in a flash" (Alizadeh et al., 2023) can be measured with a model of any size.
// Nothing is said of quality: the text has no meaning.
//
// U are r = d / 32 orthonormal directions of the residual stream of width d, orthogonal to (1, ...,
// 1): Walsh functions 1 to r, so that U h is a short transform and never a matrix. A width has one
// function less than the largest power of two that divides it, so Falcon 7B's 4544 has r = 63. By seed:
//
//   position p   U s,  s[p] = a s[p - 1] + e, deviation sqrt(0.65), a = exp(-1/9)
//   token v      U h + 0.5 sqrt(r) n,  h with deviation sqrt(0.35), n a unit vector orthogonal to U
//   row of fc1   sqrt(r / d) (U c + stiffness n),  c and n unit vectors
//   its bias     -(0.6 g + t),  g normal, t so that 3 % of the neurons of a layer are active
//   fc2, out     normal; each adds 5 % of the norm of the residual stream
//
// Norms do nothing else than normalise. The part of fc1 outside U is what a predictor of rank r
// cannot see. With this stiffness and a width of 4096, the best one that misses 5 % of the active
// neurons names 7 % of the others, as the paper's predictors do. Narrow models have fewer directions,
// and more wrong names: 9 % at a width of 1024.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/dtype.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_config.h"

namespace lime {

inline constexpr double kPlantedActive = 0.03;
inline constexpr double kPlantedStiffness = 5.5;

// InvalidArgument, with the reason, unless the model is an OPT that is not packed, whose width has
// these directions.
absl::Status CheckPlantedNeurons(const ModelConfig& config);

// How the rows of a planted matrix are made.
struct PlantedMatrix {
  int64_t directions = 0;  // r
  float inside = 0;        // deviation of each coordinate in U; with `unit` the norm of all
  bool unit = false;       // coordinates have the same norm in all rows
  bool walk = false;       // coordinates follow those of the row before
  float outside = 0;       // norm of the part outside U
};

PlantedMatrix PlantedTokens(const ModelConfig& config);
PlantedMatrix PlantedPositions(const ModelConfig& config);
PlantedMatrix PlantedFirst(const ModelConfig& config);

// What depends on the layer: the residual stream grows by 5 % of its norm with each half.
struct PlantedLayer {
  float threshold = 0;       // t
  float bias_deviation = 0;  // of the thresholds
  float down_deviation = 0;  // of the weights of fc2
  float out_deviation = 0;   // of those of the attention's output
};
// Draws states of the residual stream to find t: a few ten milliseconds for each layer.
PlantedLayer PlantedLayerOf(const ModelConfig& config, int64_t layer);

// Fills `out` with elements [first, ...) of the matrix, which has `cols` columns. The keys (draws.h)
// are of the part outside U, and of the coordinates.  REQUIRES: out is a whole number of elements
void FillPlanted(const PlantedMatrix& matrix, int64_t cols, DType dtype, uint64_t outside_key, uint64_t inside_key, int64_t first,
                 std::span<std::byte> out);

// The coordinates of a vector in U.  REQUIRES: `vector` has a width that CheckPlantedNeurons accepts
std::vector<float> PlantedCoordinates(std::span<const float> vector);

}  // namespace lime
