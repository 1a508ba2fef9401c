// GLM-4.7-Flash: attention over latents, the first layers dense, and the router of GLM-4.5.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"glm4_moe_lite"};
constexpr std::string_view kArchitectures[] = {"Glm4MoeLiteForCausalLM"};
constexpr TextField kTexts[] = {{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}};
constexpr ExpertsFields kExperts = {.count = "n_routed_experts",
                                    .shared_count = "n_shared_experts",
                                    .normalized = "norm_topk_prob",
                                    .weight_factor = "routed_scaling_factor",
                                    .groups = "n_group",
                                    .groups_kept = "topk_group",
                                    .first_dense = "first_k_dense_replace",
                                    .defaults = {.count = 64,
                                                 .per_token = 4,
                                                 .intermediate_size = 1536,
                                                 .scoring = RouterScoring::kSigmoid,
                                                 .normalized = true,
                                                 .weight_factor = 1.8,
                                                 .correction = true},
                                    .default_shared_count = 1,
                                    .default_first_dense = 1};
constexpr TensorName kTensors[] = {
    {BlockKind::kEmbedding, TensorRole::kTokenEmbedding, "embed_tokens"},
    {BlockKind::kAttention, TensorRole::kNorm, "input_layernorm"},
    {BlockKind::kAttention, TensorRole::kQDown, "self_attn.q_a_proj"},
    {BlockKind::kAttention, TensorRole::kQDownNorm, "self_attn.q_a_layernorm"},
    {BlockKind::kAttention, TensorRole::kQUp, "self_attn.q_b_proj"},
    {BlockKind::kAttention, TensorRole::kKvDown, "self_attn.kv_a_proj_with_mqa"},
    {BlockKind::kAttention, TensorRole::kKvDownNorm, "self_attn.kv_a_layernorm"},
    {BlockKind::kAttention, TensorRole::kKvUp, "self_attn.kv_b_proj"},
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

constinit const Family kGlm4MoeLiteFamily = {.name = "glm4_moe_lite",
                                             .model_types = kModelTypes,
                                             .architectures = kArchitectures,
                                             .prefixes = kTextPrefixes,
                                             .tensors = kTensors,
                                             .defaults = {.positions = 202752, .norm_eps = 1e-5},
                                             .experts = &kExperts,
                                             .texts = kTexts,
                                             .latent_attention = true};

}  // namespace lime
