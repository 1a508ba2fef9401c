// Blocks with experts and random weights, for the tests of backends: no family, only sizes.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "planner/plan/model/block_roles.h"
#include "planner/plan/model/model_spec.h"
#include "tests/kernels/cpu_test_util.h"

namespace lime {

inline constexpr int64_t kExpertsHidden = 96, kExpertsInner = 64, kExpertsSharedInner = 32;

struct RandomExperts {
  ExpertsConfig experts;
  Activation activation = Activation::kSilu;
  DType dtype = DType::kF32;
  int bits = 0;  // of packed matrices, in groups of 32; 0: dense
};

// Two layers of experts, and no other block. 12 experts, 3 for each token, if `experts` leaves them
// out.
inline ModelSpec ExpertsSpec(RandomExperts options) {
  ExpertsConfig& experts = options.experts;
  if (experts.count == 0) experts.count = 12, experts.per_token = 3;
  experts.intermediate_size = kExpertsInner;
  ModelSpec spec;
  spec.working_dtype = options.dtype;
  ModelConfig& config = spec.config;
  config.hidden_size = kExpertsHidden, config.num_heads = 2, config.vocab_size = 16, config.max_positions = 1024;
  config.layers.assign(2, {.num_kv_heads = 1, .head_dim = 16, .rope = -1, .experts = true});
  config.after_norms = config.layer_scale = experts.norms_apart;
  config.experts = experts, config.activation = options.activation, config.activation_limit = 0.8;
  for (int32_t layer = 0; layer < 2; ++layer) {
    BlockSpec block{.id = {BlockKind::kExperts, layer}};
    const auto add = [&](const BlockRole& role, TensorPart part, DType dtype, std::vector<int64_t> shape, int32_t expert) {
      Bytes bytes = ElementBytes(dtype);
      for (const int64_t n : shape) bytes *= n;
      block.bytes += bytes;
      block.tensors.push_back({.role = role.role, .part = part, .info = {dtype, std::move(shape), bytes}, .expert = expert});
    };
    const auto add_role = [&](const BlockRole& role, int32_t expert) {
      const int64_t rows = role.rows(config, config.layers[0]);
      if (role.form != RoleForm::kMatrix) return add(role, TensorPart::kWeight, DType::kF32, {rows}, expert);
      const int64_t cols = role.cols(config, config.layers[0]);
      if (options.bits == 0) {
        add(role, TensorPart::kWeight, options.dtype, {rows, cols}, expert);
      } else {
        add(role, TensorPart::kWeight, DType::kU32, {rows, cols * options.bits / 32}, expert);
        for (const TensorPart part : {TensorPart::kScales, TensorPart::kGroupBiases})
          add(role, part, options.dtype, {rows, cols / 32}, expert);
      }
      if (role.has_bias != nullptr && role.has_bias(config)) add(role, TensorPart::kBias, options.dtype, {rows}, expert);
    };
    for (int32_t expert = -1; expert < experts.count; ++expert) {
      for (const BlockRole& role : RolesOf(BlockKind::kExperts)) {
        if (role.per_expert == (expert >= 0) && (role.present == nullptr || role.present(config))) add_role(role, expert);
      }
    }
    spec.blocks.push_back(std::move(block));
  }
  return spec;
}

// The tensors of one block, in the order of its spec. `bits`: of packed matrices, as in the options.
inline std::vector<std::vector<std::byte>> RandomTensors(const BlockSpec& block, int bits, uint32_t seed) {
  std::vector<std::vector<std::byte>> tensors;
  for (const TensorSpec& tensor : block.tensors) {
    const int64_t elements = tensor.info.bytes / ElementBytes(tensor.info.dtype);
    if (tensor.info.dtype == DType::kU32) {
      std::mt19937 random(seed++);
      tensors.emplace_back(static_cast<size_t>(tensor.info.bytes));
      for (std::byte& byte : tensors.back()) byte = static_cast<std::byte>(random());
      continue;
    }
    const bool dense = tensor.part == TensorPart::kWeight && tensor.info.shape.size() == 2;
    const float scale = tensor.part == TensorPart::kScales        ? 0.5F / static_cast<float>(1 << bits)
                        : tensor.part == TensorPart::kGroupBiases ? 0.1F
                        : dense                                   ? 2 / std::sqrt(static_cast<float>(tensor.info.shape[1]))
                                                                  : 0.5F;
    tensors.push_back(std::move(cpu::RandomArray(tensor.info.dtype, elements, seed++, scale).data));
  }
  return tensors;
}

}  // namespace lime
