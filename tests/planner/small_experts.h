// A small model with experts on small boards, for tests of parts on demand.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/problem/plan_problem.h"
#include "tests/planner/small_cluster.h"

namespace lime {

inline constexpr int64_t kSmallExperts = 16, kSmallChosen = 2, kSmallInner = 256;

inline void AddTensor(TensorRole role, std::vector<int64_t> shape, int32_t expert, BlockSpec& block) {
  Bytes bytes = 2;
  for (const int64_t size : shape) bytes *= size;
  TensorSpec tensor{.role = role, .name = absl::StrCat("t", block.tensors.size()), .expert = expert};
  tensor.info = {.dtype = DType::kBF16, .shape = std::move(shape), .bytes = bytes};
  block.tensors.push_back(std::move(tensor));
  block.bytes += bytes;
}

// Norm, router, and gate, up and down of every expert.
inline BlockSpec ExpertsBlock(int32_t layer, int64_t hidden) {
  BlockSpec block{.id = {BlockKind::kExperts, layer}};
  AddTensor(TensorRole::kNorm, {hidden}, -1, block);
  AddTensor(TensorRole::kRouter, {kSmallExperts, hidden}, -1, block);
  for (int32_t expert = 0; expert < kSmallExperts; ++expert) {
    AddTensor(TensorRole::kGate, {kSmallInner, hidden}, expert, block);
    AddTensor(TensorRole::kUp, {kSmallInner, hidden}, expert, block);
    AddTensor(TensorRole::kDown, {hidden, kSmallInner}, expert, block);
  }
  return block;
}

// Four layers of 16 experts of 1.5 MiB; a row chooses two.
inline ModelSpec SmallExpertModel() {
  constexpr int64_t kHidden = 1024;
  ModelSpec spec = *DescribeModel(LlamaConfig(/*layers=*/4, kHidden, kSmallInner, /*vocab=*/4000), "experts");
  spec.config.experts = {.count = kSmallExperts, .per_token = kSmallChosen, .intermediate_size = kSmallInner};
  for (LayerConfig& layer : spec.config.layers) layer.experts = true;
  for (BlockSpec& block : spec.blocks) {
    if (block.id.kind == BlockKind::kMlp) block = ExpertsBlock(block.id.layer, kHidden);
  }
  return spec;
}

}  // namespace lime
