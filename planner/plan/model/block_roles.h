// The tensors that a block of each kind has, by role, in order of use.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/plan/model/block_kind.h"
#include "planner/plan/model/model_config.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// How a checkpoint stores the tensors of a role.
enum class RoleForm : uint8_t {
  kMatrix,  // "NAME.weight" [rows, cols], dense or packed, with or without "NAME.bias"
  kTable,   // "NAME.weight" [rows, cols], dense
  kNorm,    // "NAME.weight"; with LayerNorm also "NAME.bias"
  kFilter,  // "NAME.weight" [rows, 1, cols]; [rows, cols, 1] in files of MLX
  kVector,  // "NAME"
};

// Matrices and tables have the working dtype. The other tensors are small; each may have a dtype of
// its own, since computations with them are in fp32.
struct BlockRole {
  TensorRole role = TensorRole::kNorm;
  RoleForm form = RoleForm::kMatrix;
  // Rows and columns; a vector has rows only.
  int64_t (*rows)(const ModelConfig& config, const LayerConfig& layer) = nullptr;
  int64_t (*cols)(const ModelConfig& config, const LayerConfig& layer) = nullptr;
  bool (*present)(const ModelConfig& config) = nullptr;   // null: always
  bool (*has_bias)(const ModelConfig& config) = nullptr;  // null: never
  bool per_expert = false;                                // every expert has such a tensor
  bool (*of_layer)(const LayerConfig& layer) = nullptr;   // whether this layer has it; null: every one
};

std::span<const BlockRole> RolesOf(BlockKind kind);

}  // namespace lime
