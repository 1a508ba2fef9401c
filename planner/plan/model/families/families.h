// The list of all families. Each is defined in a file of its own.
#pragma once

#include "planner/plan/model/family.h"

namespace lime {

extern const Family kLlamaFamily, kMistralFamily, kQwen2Family, kQwen3Family, kOptFamily, kQwen3_5Family, kSmolLm3Family, kGraniteFamily,
    kPhi3Family, kMinistral3Family, kQwen3MoeFamily, kQwen3_5MoeFamily, kQwen3NextFamily, kMixtralFamily, kMiniMaxM2Family, kGlm4MoeFamily,
    kGemma3Family, kFalconFamily, kGptOssFamily, kGemma4Family, kGlm4MoeLiteFamily, kSparseLlamaFamily, kBambooFamily;

// In the order in which messages list them.
inline constexpr const Family* kFamilies[] = {
    &kLlamaFamily,     &kMistralFamily, &kQwen2Family,       &kQwen3Family,       &kOptFamily,      &kQwen3_5Family,
    &kSmolLm3Family,   &kGraniteFamily, &kPhi3Family,        &kMinistral3Family,  &kQwen3MoeFamily, &kQwen3_5MoeFamily,
    &kQwen3NextFamily, &kMixtralFamily, &kMiniMaxM2Family,   &kGlm4MoeFamily,     &kGemma3Family,   &kFalconFamily,
    &kGptOssFamily,    &kGemma4Family,  &kGlm4MoeLiteFamily, &kSparseLlamaFamily, &kBambooFamily};

// Names that Mixtral and MiniMax share.
inline constexpr TensorName kMixtralTensors[] = {
    {BlockKind::kEmbedding, TensorRole::kTokenEmbedding, "embed_tokens"},
    {BlockKind::kAttention, TensorRole::kNorm, "input_layernorm"},
    {BlockKind::kAttention, TensorRole::kQ, "self_attn.q_proj"},
    {BlockKind::kAttention, TensorRole::kK, "self_attn.k_proj"},
    {BlockKind::kAttention, TensorRole::kV, "self_attn.v_proj"},
    {BlockKind::kAttention, TensorRole::kQNorm, "self_attn.q_norm"},
    {BlockKind::kAttention, TensorRole::kKNorm, "self_attn.k_norm"},
    {BlockKind::kAttention, TensorRole::kO, "self_attn.o_proj"},
    {BlockKind::kExperts, TensorRole::kNorm, "post_attention_layernorm"},
    {BlockKind::kExperts, TensorRole::kRouter, "block_sparse_moe.gate"},
    {BlockKind::kExperts, TensorRole::kRouterCorrection, "block_sparse_moe.e_score_correction_bias"},
    {BlockKind::kExperts, TensorRole::kGate, "block_sparse_moe.experts.#.w1"},
    {BlockKind::kExperts, TensorRole::kUp, "block_sparse_moe.experts.#.w3"},
    {BlockKind::kExperts, TensorRole::kDown, "block_sparse_moe.experts.#.w2"},
    {BlockKind::kExperts, TensorRole::kGate, "block_sparse_moe.switch_mlp.gate_proj"},
    {BlockKind::kExperts, TensorRole::kUp, "block_sparse_moe.switch_mlp.up_proj"},
    {BlockKind::kExperts, TensorRole::kDown, "block_sparse_moe.switch_mlp.down_proj"},
    {BlockKind::kHead, TensorRole::kNorm, "norm"},
};

}  // namespace lime
