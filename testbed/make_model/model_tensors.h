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

namespace lime {

// Element i of a tensor is a function of (seed, stream, i) alone.
struct RandomTensor {
  enum class Kind {
    kNormal,      // nearly normally distributed, with mean and deviation
    kWords,       // random bits: the packed codes of a quantised weight
    kGroupBiases  // minus half the range of the same stream's scales: weights centre on zero
  };
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  Kind kind = Kind::kNormal;
  uint64_t stream = 0;
  float mean = 0;
  float deviation = 0;
  float top_code = 0;  // kGroupBiases: 2^bits - 1
};

// All tensors of a model, in the order of the files.
absl::StatusOr<std::vector<RandomTensor>> TensorsOf(const ModelConfig& config, DType dtype, std::optional<DType> norm_dtype = std::nullopt);

// Fills `out` with elements [first, ...) of the tensor. REQUIRES: out is a whole number of
// elements, first is even.
void FillRandom(const RandomTensor& tensor, uint64_t seed, int64_t first, std::span<std::byte> out);

}  // namespace lime
