// The tensors of a random model: the names and shapes that its description implies, and their random
// values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "planner/base/dtype.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_config.h"
#include "testbed/make_model/planted_neurons.h"

namespace lime {

// Element i of a tensor is a function of (seed, stream, i) alone.
struct RandomTensor {
  enum class Kind {
    kNormal,       // nearly normally distributed, with mean and deviation; of U8 rounded to integers
    kWords,        // random bits: the packed codes of a quantised weight
    kGroupBiases,  // minus half the range of the same stream's scales: weights centre on zero
    kProducts,     // the FP8 code that kNormal draws, times its scale, which is exact in F32
    kTopics,       // like kNormal, plus what row i shares with all rows of topic i modulo kPlantedTopics
    kPlanted       // rows of `planted`
  };
  // kProducts: the scales of the codes.
  struct Scales {
    uint64_t stream = 0;
    DType dtype = DType::kF32;
    float mean = 0;
    float deviation = 0;
    int64_t block_rows = 0;  // that share a scale
    int64_t block_cols = 0;
  };
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  Kind kind = Kind::kNormal;
  uint64_t stream = 0;
  float mean = 0;
  float deviation = 0;
  float top_code = 0;                 // kGroupBiases: 2^bits - 1
  std::optional<DType> rounded = {};  // values are rounded to this dtype before they are to `dtype`
  Scales scales = {};
  float shared_deviation = 0;  // kTopics: of what the rows of a topic share; the same in all tensors but for this factor
  PlantedMatrix planted = {};  // kPlanted; the next stream is that of its coordinates
};

// How the tensors are stored.
struct StoredForm {
  DType dtype = DType::kBF16;
  std::optional<DType> norm_dtype = {};  // of norms, if it differs
  bool widened = false;                  // MakeModelOptions::widened
  bool planted_routes = false;           // MakeModelOptions::planted_routes
  bool planted_neurons = false;          // MakeModelOptions::planted_neurons
};

// All tensors of a model, in the order of the files.
absl::StatusOr<std::vector<RandomTensor>> TensorsOf(const ModelConfig& config, const StoredForm& form);

// Fills `out` with elements [first, ...) of the tensor. REQUIRES: out is a whole number of
// elements, first is even, and of packed bytes a multiple of 8.
void FillRandom(const RandomTensor& tensor, uint64_t seed, int64_t first, std::span<std::byte> out);

}  // namespace lime
