// Finds the tensors of one block by role. ModelSpec::Build has checked their dtypes and shapes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/delta_rule.h"
#include "kernels/cpu_backend/layers.h"
#include "planner/plan/model/model_spec.h"

namespace lime::cpu {

class BlockBinder {
 public:
  // REQUIRES: both outlive this object.
  BlockBinder(const BlockSpec& spec, const BlockWeights& weights) : spec_(spec), weights_(weights) {}

  // Null if there is no such tensor, or if it streams.
  const std::byte* Data(TensorRole role, TensorPart part = TensorPart::kWeight, int32_t expert = -1) const;
  // `cols`: number of input features, which a packed weight does not state. `expert`: whose matrix.
  LinearLayer Linear(TensorRole role, int64_t cols, int32_t expert = -1) const;
  // kNorm: the norm before the block, or the final norm. Without weights if there is no such norm.
  Norm ReadNorm(const ModelConfig& config, TensorRole role = TensorRole::kNorm) const;
  // A tensor that stays in memory; data is null if there is none.
  Values Small(TensorRole role) const { return {.data = Data(role), .dtype = DTypeOf(role)}; }
  // The only element of such a tensor; 1 if there is none.
  float Number(TensorRole role) const;

 private:
  // fp32 if there is no such tensor.
  DType DTypeOf(TensorRole role) const;

  const BlockSpec& spec_;
  const BlockWeights& weights_;
};

}  // namespace lime::cpu
