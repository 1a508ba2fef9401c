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
int64_t Attended(const ModelConfig& config, const LayerConfig& layer) {
  return config.num_heads * layer.head_dim;
}
int64_t AttendedInput(const ModelConfig& config, const LayerConfig& layer) {
  return config.latent_attention ? config.num_heads * config.latent_attention->value_dim : Attended(config, layer);
}
int64_t QueryRank(const ModelConfig& config, const LayerConfig&) {
  return config.latent_attention->query_rank;
}
int64_t LatentRank(const ModelConfig& config, const LayerConfig&) {
  return config.latent_attention->rank;
}
int64_t LatentQueries(const ModelConfig& config, const LayerConfig&) {
  return config.num_heads * (config.latent_attention->plain + config.latent_attention->rotated);
}
int64_t KeysAndValues(const ModelConfig& config, const LayerConfig&) {
  return config.num_heads * (config.latent_attention->plain + config.latent_attention->value_dim);
}
int64_t NormedQueries(const ModelConfig& config, const LayerConfig& layer) {
  return config.qk_norm_all_heads ? Attended(config, layer) : layer.head_dim;
}
int64_t Queries(const ModelConfig& config, const LayerConfig& layer) {
  return Attended(config, layer) * (config.attention_gate ? 2 : 1);
}
int64_t Keys(const ModelConfig&, const LayerConfig& layer) {
  return layer.num_kv_heads * layer.head_dim;
}
int64_t NormedKeys(const ModelConfig& config, const LayerConfig& layer) {
  return config.qk_norm_all_heads ? Keys(config, layer) : layer.head_dim;
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
int64_t Qkvz(const ModelConfig& config, const LayerConfig&) {
  return config.linear_attention->conv_cols() + config.linear_attention->value_cols();
}
int64_t BetaDecay(const ModelConfig& config, const LayerConfig&) {
  return 2 * config.linear_attention->value_heads;
}
int64_t ValueDim(const ModelConfig& config, const LayerConfig&) {
  return config.linear_attention->value_dim;
}

int64_t QueriesKeysValues(const ModelConfig& config, const LayerConfig& layer) {
  return Attended(config, layer) + 2 * Keys(config, layer);
}

int64_t LayerInputs(const ModelConfig& config, const LayerConfig&) {
  return config.layer_inputs;
}
int64_t LayerInputCols(const ModelConfig& config, const LayerConfig&) {
  return config.layer_input_cols;
}
int64_t Heads(const ModelConfig& config, const LayerConfig&) {
  return config.num_heads;
}
int64_t One(const ModelConfig&, const LayerConfig&) {
  return 1;
}
int64_t Experts(const ModelConfig& config, const LayerConfig&) {
  return config.experts->count;
}
int64_t ExpertInner(const ModelConfig& config, const LayerConfig&) {
  return config.experts->intermediate_size;
}
int64_t ExpertGateUp(const ModelConfig& config, const LayerConfig&) {
  return 2 * config.experts->intermediate_size;
}
int64_t SharedInner(const ModelConfig& config, const LayerConfig&) {
  return config.experts->shared_intermediate_size;
}

// Options.
bool ByKeyHead(const ModelConfig& config) {
  return config.linear_attention->by_key_head;
}
bool NotByKeyHead(const ModelConfig& config) {
  return !config.linear_attention->by_key_head;
}
bool HasRouterCorrection(const ModelConfig& config) {
  return config.experts->correction;
}
bool RouterBias(const ModelConfig& config) {
  return config.experts->router_bias;
}
bool ExpertBias(const ModelConfig& config) {
  return config.experts->bias;
}
bool Alternates(const ModelConfig& config) {
  return config.experts->alternates;
}
bool DoesNotAlternate(const ModelConfig& config) {
  return !config.experts->alternates;
}
bool HasSharedExpert(const ModelConfig& config) {
  return config.experts->shared_intermediate_size > 0;
}
bool HasSharedScale(const ModelConfig& config) {
  return config.experts->shared_scale;
}
bool HasSinks(const ModelConfig& config) {
  return config.sinks;
}
bool HasAfterNorm(const ModelConfig& config) {
  return config.after_norms;
}
bool HasNorm(const ModelConfig& config) {
  return config.norm == NormKind::kRms || config.norm_affine;
}
bool HasMlpNorm(const ModelConfig& config) {
  return !config.parallel_halves && HasNorm(config);
}
bool HasParallelNorm(const ModelConfig& config) {
  return config.parallel_norms && HasNorm(config);
}
bool QkvApart(const ModelConfig& config) {
  return !config.qkv_by_head && !config.latent_attention;
}
bool HasLatents(const ModelConfig& config) {
  return config.latent_attention.has_value();
}
bool QkvByHead(const ModelConfig& config) {
  return config.qkv_by_head;
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

bool HasLayerScale(const ModelConfig& config) {
  return config.layer_scale;
}
bool HasNormsApart(const ModelConfig& config) {
  return config.experts->norms_apart;
}

bool HasLayerInputs(const ModelConfig& config) {
  return config.layer_inputs > 0;
}

// Options of a layer.
bool HasKeys(const LayerConfig& layer) {
  return !layer.takes_kv;
}
bool HasValues(const LayerConfig& layer) {
  return !layer.takes_kv && !layer.keys_are_values;
}

constexpr BlockRole kEmbedding[] = {
    {TensorRole::kTokenEmbedding, RoleForm::kMatrix, Vocab, Hidden},
    {TensorRole::kPositionEmbedding, RoleForm::kTable, Positions, Hidden, LearnsPositions},
    {TensorRole::kLayerEmbedding, RoleForm::kTable, Vocab, LayerInputCols, HasLayerInputs},
    {TensorRole::kLayerProjection, RoleForm::kTable, LayerInputCols, Hidden, HasLayerInputs},
    {TensorRole::kLayerInputNorm, RoleForm::kNorm, LayerInputs, nullptr, HasLayerInputs},
};
constexpr BlockRole kAttention[] = {
    {TensorRole::kNorm, RoleForm::kNorm, Hidden, nullptr, HasNorm},
    {TensorRole::kMlpNorm, RoleForm::kNorm, Hidden, nullptr, HasParallelNorm},
    {TensorRole::kQ, RoleForm::kMatrix, Queries, Hidden, QkvApart, QkvBias},
    {TensorRole::kK, RoleForm::kMatrix, Keys, Hidden, QkvApart, QkvBias, false, HasKeys},
    {TensorRole::kV, RoleForm::kMatrix, Keys, Hidden, QkvApart, QkvBias, false, HasValues},
    {TensorRole::kQkvByHead, RoleForm::kMatrix, QueriesKeysValues, Hidden, QkvByHead, QkvBias},
    {TensorRole::kQNorm, RoleForm::kNorm, NormedQueries, nullptr, NormsHeads},
    {TensorRole::kKNorm, RoleForm::kNorm, NormedKeys, nullptr, NormsHeads, nullptr, false, HasKeys},
    {TensorRole::kSinks, RoleForm::kVector, Heads, nullptr, HasSinks},
    {TensorRole::kQDown, RoleForm::kMatrix, QueryRank, Hidden, HasLatents},
    {TensorRole::kQDownNorm, RoleForm::kNorm, QueryRank, nullptr, HasLatents},
    {TensorRole::kQUp, RoleForm::kMatrix, LatentQueries, QueryRank, HasLatents},
    {TensorRole::kKvDown, RoleForm::kMatrix, Keys, Hidden, HasLatents},
    {TensorRole::kKvDownNorm, RoleForm::kNorm, LatentRank, nullptr, HasLatents},
    {TensorRole::kKvUp, RoleForm::kTable, KeysAndValues, LatentRank, HasLatents},
    {TensorRole::kO, RoleForm::kMatrix, Hidden, AttendedInput, nullptr, OutputBias},
    {TensorRole::kAfterNorm, RoleForm::kNorm, Hidden, nullptr, HasAfterNorm},
};
constexpr BlockRole kLinearAttention[] = {
    {TensorRole::kNorm, RoleForm::kNorm, Hidden, nullptr, HasNorm},
    {TensorRole::kQkv, RoleForm::kMatrix, ConvCols, Hidden, NotByKeyHead},
    {TensorRole::kZ, RoleForm::kMatrix, ValueCols, Hidden, NotByKeyHead},
    {TensorRole::kBeta, RoleForm::kMatrix, ValueHeads, Hidden, NotByKeyHead},
    {TensorRole::kDecay, RoleForm::kMatrix, ValueHeads, Hidden, NotByKeyHead},
    {TensorRole::kQkvz, RoleForm::kMatrix, Qkvz, Hidden, ByKeyHead},
    {TensorRole::kBetaDecay, RoleForm::kMatrix, BetaDecay, Hidden, ByKeyHead},
    {TensorRole::kConv, RoleForm::kFilter, ConvCols, ConvWidth},
    {TensorRole::kDecayLog, RoleForm::kVector, ValueHeads},
    {TensorRole::kDecayBias, RoleForm::kVector, ValueHeads},
    {TensorRole::kOutputNorm, RoleForm::kNorm, ValueDim},
    {TensorRole::kO, RoleForm::kMatrix, Hidden, ValueCols},
};
constexpr BlockRole kMlp[] = {
    {TensorRole::kNorm, RoleForm::kNorm, Hidden, nullptr, HasMlpNorm},
    {TensorRole::kGate, RoleForm::kMatrix, Inner, Hidden, Gated, MlpBias},
    {TensorRole::kUp, RoleForm::kMatrix, Inner, Hidden, nullptr, MlpBias},
    {TensorRole::kDown, RoleForm::kMatrix, Hidden, Inner, nullptr, MlpBias},
    {TensorRole::kAfterNorm, RoleForm::kNorm, Hidden, nullptr, HasAfterNorm},
    {TensorRole::kLayerGate, RoleForm::kMatrix, LayerInputs, Hidden, HasLayerInputs},
    {TensorRole::kLayerUp, RoleForm::kMatrix, Hidden, LayerInputs, HasLayerInputs},
    {TensorRole::kLayerAfterNorm, RoleForm::kNorm, Hidden, nullptr, HasLayerInputs},
    {TensorRole::kLayerScale, RoleForm::kVector, One, nullptr, HasLayerScale},
};
// Those of `per_expert` follow the others, expert by expert.
constexpr BlockRole kExperts[] = {
    {TensorRole::kNorm, RoleForm::kNorm, Hidden, nullptr, HasNorm},
    {TensorRole::kRouterNorm, RoleForm::kVector, Hidden, nullptr, HasNormsApart},
    {TensorRole::kRouter, RoleForm::kMatrix, Experts, Hidden, nullptr, RouterBias},
    {TensorRole::kRouterCorrection, RoleForm::kVector, Experts, nullptr, HasRouterCorrection},
    {TensorRole::kExpertScale, RoleForm::kVector, Experts, nullptr, HasNormsApart},
    {TensorRole::kSharedScale, RoleForm::kMatrix, One, Hidden, HasSharedScale},
    {TensorRole::kSharedNorm, RoleForm::kNorm, Hidden, nullptr, HasNormsApart},
    {TensorRole::kSharedGate, RoleForm::kMatrix, SharedInner, Hidden, HasSharedExpert},
    {TensorRole::kSharedUp, RoleForm::kMatrix, SharedInner, Hidden, HasSharedExpert},
    {TensorRole::kSharedDown, RoleForm::kMatrix, Hidden, SharedInner, HasSharedExpert},
    {TensorRole::kSharedAfterNorm, RoleForm::kNorm, Hidden, nullptr, HasNormsApart},
    {TensorRole::kExpertsAfterNorm, RoleForm::kNorm, Hidden, nullptr, HasNormsApart},
    {TensorRole::kAfterNorm, RoleForm::kNorm, Hidden, nullptr, HasAfterNorm},
    {TensorRole::kLayerScale, RoleForm::kVector, One, nullptr, HasLayerScale},
    {TensorRole::kGate, RoleForm::kMatrix, ExpertInner, Hidden, DoesNotAlternate, ExpertBias, true},
    {TensorRole::kUp, RoleForm::kMatrix, ExpertInner, Hidden, DoesNotAlternate, ExpertBias, true},
    {TensorRole::kGateUp, RoleForm::kMatrix, ExpertGateUp, Hidden, Alternates, ExpertBias, true},
    {TensorRole::kDown, RoleForm::kMatrix, Hidden, ExpertInner, nullptr, ExpertBias, true},
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
    case BlockKind::kExperts:
      return kExperts;
  }
  return {};
}

}  // namespace lime
