// GLM-4.5 to 4.7: half of each head rotates, the first layers are dense, and a router with a
// correction.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"glm4_moe"};
constexpr std::string_view kArchitectures[] = {"Glm4MoeForCausalLM"};
constexpr BoolField kOptions[] = {{"attention_bias", false, &ModelConfig::qkv_bias}, {"use_qk_norm", false, &ModelConfig::qk_norm}};
constexpr TextField kTexts[] = {{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}};
constexpr ExpertsFields kExperts = {.count = "n_routed_experts",
                                    .shared_count = "n_shared_experts",
                                    .normalized = "norm_topk_prob",
                                    .weight_factor = "routed_scaling_factor",
                                    .groups = "n_group",
                                    .groups_kept = "topk_group",
                                    .first_dense = "first_k_dense_replace",
                                    .defaults = {.count = 128,
                                                 .per_token = 8,
                                                 .intermediate_size = 1408,
                                                 .scoring = RouterScoring::kSigmoid,
                                                 .normalized = true,
                                                 .correction = true},
                                    .default_shared_count = 1,
                                    .default_first_dense = 1};
constexpr TensorName kTensors[] = {
    {BlockKind::kEmbedding, TensorRole::kTokenEmbedding, "embed_tokens"},
    {BlockKind::kAttention, TensorRole::kNorm, "input_layernorm"},
    {BlockKind::kAttention, TensorRole::kQ, "self_attn.q_proj"},
    {BlockKind::kAttention, TensorRole::kK, "self_attn.k_proj"},
    {BlockKind::kAttention, TensorRole::kV, "self_attn.v_proj"},
    {BlockKind::kAttention, TensorRole::kQNorm, "self_attn.q_norm"},
    {BlockKind::kAttention, TensorRole::kKNorm, "self_attn.k_norm"},
    {BlockKind::kAttention, TensorRole::kO, "self_attn.o_proj"},
    {BlockKind::kMlp, TensorRole::kNorm, "post_attention_layernorm"},
    {BlockKind::kMlp, TensorRole::kGate, "mlp.gate_proj"},
    {BlockKind::kMlp, TensorRole::kUp, "mlp.up_proj"},
    {BlockKind::kMlp, TensorRole::kDown, "mlp.down_proj"},
    {BlockKind::kExperts, TensorRole::kNorm, "post_attention_layernorm"},
    {BlockKind::kExperts, TensorRole::kRouter, "mlp.gate"},
    {BlockKind::kExperts, TensorRole::kRouterCorrection, "mlp.gate.e_score_correction_bias"},
    {BlockKind::kExperts, TensorRole::kSharedGate, "mlp.shared_experts.gate_proj"},
    {BlockKind::kExperts, TensorRole::kSharedUp, "mlp.shared_experts.up_proj"},
    {BlockKind::kExperts, TensorRole::kSharedDown, "mlp.shared_experts.down_proj"},
    {BlockKind::kExperts, TensorRole::kGate, "mlp.experts.#.gate_proj"},
    {BlockKind::kExperts, TensorRole::kUp, "mlp.experts.#.up_proj"},
    {BlockKind::kExperts, TensorRole::kDown, "mlp.experts.#.down_proj"},
    {BlockKind::kExperts, TensorRole::kGate, "mlp.switch_mlp.gate_proj"},
    {BlockKind::kExperts, TensorRole::kUp, "mlp.switch_mlp.up_proj"},
    {BlockKind::kExperts, TensorRole::kDown, "mlp.switch_mlp.down_proj"},
    {BlockKind::kHead, TensorRole::kNorm, "norm"},
};

}  // namespace

constinit const Family kGlm4MoeFamily = {.name = "glm4_moe",
                                         .model_types = kModelTypes,
                                         .architectures = kArchitectures,
                                         .prefixes = kTextPrefixes,
                                         .tensors = kTensors,
                                         .defaults = {.positions = 131072, .kv_heads = 8, .norm_eps = 1e-5, .partial_rotation = 0.5},
                                         .options = kOptions,
                                         .rotates_part_of_heads = true,
                                         .experts = &kExperts,
                                         .texts = kTexts};

}  // namespace lime
