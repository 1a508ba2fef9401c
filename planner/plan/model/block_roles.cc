#include "planner/plan/model/block_roles.h"

namespace lime {
namespace {

// Sizes.
int64_t Hidden(const ModelConfig& config, const LayerConfig&) {
  return config.hidden_size;
}
int64_t Vocab(const ModelConfig& config, const LayerConfig&) {
  return config.vocab_size;
}
int64_t Positions(const ModelConfig& config, const LayerConfig&) {
  return config.max_positions + config.position_offset;
}
int64_t Inner(const ModelConfig&, const LayerConfig& layer) {
  return layer.intermediate_size;
}
int64_t HeadDim(const ModelConfig&, const LayerConfig& layer) {
  return layer.head_dim;
}
int64_t Attended(const ModelConfig& config, const LayerConfig& layer) {
  return config.num_heads * layer.head_dim;
}
int64_t Queries(const ModelConfig& config, const LayerConfig& layer) {
  return Attended(config, layer) * (config.attention_gate ? 2 : 1);
}
int64_t Keys(const ModelConfig&, const LayerConfig& layer) {
  return layer.num_kv_heads * layer.head_dim;
}
int64_t ConvCols(const ModelConfig& config, const LayerConfig&) {
  return config.linear_attention->conv_cols();
}
int64_t ConvWidth(const ModelConfig& config, const LayerConfig&) {
  return config.linear_attention->conv_width;
}
int64_t ValueCols(const ModelConfig& config, const LayerConfig&) {
  return config.linear_attention->value_cols();
}
int64_t ValueHeads(const ModelConfig& config, const LayerConfig&) {
  return config.linear_attention->value_heads;
}
int64_t ValueDim(const ModelConfig& config, const LayerConfig&) {
  return config.linear_attention->value_dim;
}

// Options.
bool HasNorm(const ModelConfig& config) {
  return config.norm == NormKind::kRms || config.norm_affine;
}
bool HasFinalNorm(const ModelConfig& config) {
  return config.final_norm && HasNorm(config);
}
bool LearnsPositions(const ModelConfig& config) {
  return config.learned_positions;
}
bool NormsHeads(const ModelConfig& config) {
  return config.qk_norm;
}
bool Gated(const ModelConfig& config) {
  return config.gated_mlp;
}
bool QkvBias(const ModelConfig& config) {
  return config.qkv_bias;
}
bool OutputBias(const ModelConfig& config) {
  return config.attention_output_bias;
}
bool MlpBias(const ModelConfig& config) {
  return config.mlp_bias;
}

constexpr BlockRole kEmbedding[] = {
    {TensorRole::kTokenEmbedding, RoleForm::kMatrix, Vocab, Hidden},
    {TensorRole::kPositionEmbedding, RoleForm::kTable, Positions, Hidden, LearnsPositions},
};
constexpr BlockRole kAttention[] = {
    {TensorRole::kNorm, RoleForm::kNorm, Hidden, nullptr, HasNorm},
    {TensorRole::kQ, RoleForm::kMatrix, Queries, Hidden, nullptr, QkvBias},
    {TensorRole::kK, RoleForm::kMatrix, Keys, Hidden, nullptr, QkvBias},
    {TensorRole::kV, RoleForm::kMatrix, Keys, Hidden, nullptr, QkvBias},
    {TensorRole::kQNorm, RoleForm::kNorm, HeadDim, nullptr, NormsHeads},
    {TensorRole::kKNorm, RoleForm::kNorm, HeadDim, nullptr, NormsHeads},
    {TensorRole::kO, RoleForm::kMatrix, Hidden, Attended, nullptr, OutputBias},
};
constexpr BlockRole kLinearAttention[] = {
    {TensorRole::kNorm, RoleForm::kNorm, Hidden, nullptr, HasNorm}, {TensorRole::kQkv, RoleForm::kMatrix, ConvCols, Hidden},
    {TensorRole::kZ, RoleForm::kMatrix, ValueCols, Hidden},         {TensorRole::kBeta, RoleForm::kMatrix, ValueHeads, Hidden},
    {TensorRole::kDecay, RoleForm::kMatrix, ValueHeads, Hidden},    {TensorRole::kConv, RoleForm::kFilter, ConvCols, ConvWidth},
    {TensorRole::kDecayLog, RoleForm::kVector, ValueHeads},         {TensorRole::kDecayBias, RoleForm::kVector, ValueHeads},
    {TensorRole::kOutputNorm, RoleForm::kNorm, ValueDim},           {TensorRole::kO, RoleForm::kMatrix, Hidden, ValueCols},
};
constexpr BlockRole kMlp[] = {
    {TensorRole::kNorm, RoleForm::kNorm, Hidden, nullptr, HasNorm},
    {TensorRole::kGate, RoleForm::kMatrix, Inner, Hidden, Gated, MlpBias},
    {TensorRole::kUp, RoleForm::kMatrix, Inner, Hidden, nullptr, MlpBias},
    {TensorRole::kDown, RoleForm::kMatrix, Hidden, Inner, nullptr, MlpBias},
};
constexpr BlockRole kHead[] = {
    {TensorRole::kNorm, RoleForm::kNorm, Hidden, nullptr, HasFinalNorm},
    {TensorRole::kOutput, RoleForm::kMatrix, Vocab, Hidden},
};

}  // namespace

std::span<const BlockRole> RolesOf(BlockKind kind) {
  switch (kind) {
    case BlockKind::kEmbedding:
      return kEmbedding;
    case BlockKind::kAttention:
      return kAttention;
    case BlockKind::kMlp:
      return kMlp;
    case BlockKind::kHead:
      return kHead;
    case BlockKind::kLinearAttention:
      return kLinearAttention;
  }
  return {};
}

}  // namespace lime
