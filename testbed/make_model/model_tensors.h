// The tensors of a random model: their names as Hugging Face spells them, their shapes, and how
// their values are drawn.
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
    kNormal,      // about normal, with mean and deviation
    kWords,       // random bits: the packed codes of a quantised weight
    kGroupBiases  // minus half the range that the scales of the same stream span: codes then centre on zero
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

// `options.config` as the family completes it: head_dim, biases, q/k norms.
ModelConfig CompleteConfig(const MakeModelOptions& options);

// All tensors, in the order they lie in the files.
std::vector<RandomTensor> TensorsOf(const ModelConfig& config, DType dtype, std::optional<DType> norm_dtype = std::nullopt);

// Fills `out` with elements [first, ...) of the tensor. REQUIRES: out is a whole number of
// elements, first is even.
void FillRandom(const RandomTensor& tensor, uint64_t seed, int64_t first, std::span<std::byte> out);

}  // namespace lime
