// The tensors of a random model: their names in Hugging Face's spelling, their shapes, and their
// random values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/base/dtype.h"
#include "testbed/make_model/make_model.h"

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

// `options.config` with the fields that the family fixes: head_dim, biases, q/k norms.
ModelConfig CompleteConfig(const MakeModelOptions& options);

// All tensors, in the order of the files.
std::vector<RandomTensor> TensorsOf(const ModelConfig& config, DType dtype, std::optional<DType> norm_dtype = std::nullopt);

// Fills `out` with elements [first, ...) of the tensor. REQUIRES: out is a whole number of
// elements, first is even.
void FillRandom(const RandomTensor& tensor, uint64_t seed, int64_t first, std::span<std::byte> out);

}  // namespace lime
