// Gemma 4: layers with a window and layers that attend to all positions have heads and rotations of
// their own; norms before and after each half of a layer; normalised values, unscaled scores; a
// factor after each layer. Some models have experts beside a dense MLP; others (E2B, E4B) have an
// embedding of every layer, and last layers that take keys and values of earlier ones.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"gemma4_text", "gemma4"};
constexpr std::string_view kArchitectures[] = {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"};
constexpr TensorName kTensors[] = {
    {BlockKind::kEmbedding, TensorRole::kTokenEmbedding, "embed_tokens"},
    {BlockKind::kEmbedding, TensorRole::kLayerEmbedding, "embed_tokens_per_layer"},
    {BlockKind::kEmbedding, TensorRole::kLayerProjection, "per_layer_model_projection"},
    {BlockKind::kEmbedding, TensorRole::kLayerInputNorm, "per_layer_projection_norm"},
    {BlockKind::kAttention, TensorRole::kNorm, "input_layernorm"},
    {BlockKind::kAttention, TensorRole::kQ, "self_attn.q_proj"},
    {BlockKind::kAttention, TensorRole::kK, "self_attn.k_proj"},
    {BlockKind::kAttention, TensorRole::kV, "self_attn.v_proj"},
    {BlockKind::kAttention, TensorRole::kQNorm, "self_attn.q_norm"},
    {BlockKind::kAttention, TensorRole::kKNorm, "self_attn.k_norm"},
    {BlockKind::kAttention, TensorRole::kO, "self_attn.o_proj"},
    {BlockKind::kAttention, TensorRole::kAfterNorm, "post_attention_layernorm"},
    {BlockKind::kMlp, TensorRole::kNorm, "pre_feedforward_layernorm"},
    {BlockKind::kMlp, TensorRole::kGate, "mlp.gate_proj"},
    {BlockKind::kMlp, TensorRole::kUp, "mlp.up_proj"},
    {BlockKind::kMlp, TensorRole::kDown, "mlp.down_proj"},
    {BlockKind::kMlp, TensorRole::kAfterNorm, "post_feedforward_layernorm"},
    {BlockKind::kMlp, TensorRole::kLayerGate, "per_layer_input_gate"},
    {BlockKind::kMlp, TensorRole::kLayerUp, "per_layer_projection"},
    {BlockKind::kMlp, TensorRole::kLayerAfterNorm, "post_per_layer_input_norm"},
    {BlockKind::kMlp, TensorRole::kLayerScale, "layer_scalar"},
    {BlockKind::kExperts, TensorRole::kNorm, "pre_feedforward_layernorm_2"},
    {BlockKind::kExperts, TensorRole::kRouterNorm, "router.scale"},
    {BlockKind::kExperts, TensorRole::kRouter, "router.proj"},
    {BlockKind::kExperts, TensorRole::kExpertScale, "router.per_expert_scale"},
    {BlockKind::kExperts, TensorRole::kSharedNorm, "pre_feedforward_layernorm"},
    {BlockKind::kExperts, TensorRole::kSharedGate, "mlp.gate_proj"},
    {BlockKind::kExperts, TensorRole::kSharedUp, "mlp.up_proj"},
    {BlockKind::kExperts, TensorRole::kSharedDown, "mlp.down_proj"},
    {BlockKind::kExperts, TensorRole::kSharedAfterNorm, "post_feedforward_layernorm_1"},
    {BlockKind::kExperts, TensorRole::kExpertsAfterNorm, "post_feedforward_layernorm_2"},
    {BlockKind::kExperts, TensorRole::kAfterNorm, "post_feedforward_layernorm"},
    {BlockKind::kExperts, TensorRole::kLayerScale, "layer_scalar"},
    {BlockKind::kExperts, TensorRole::kGate, "experts.gate_up_proj"},
    {BlockKind::kExperts, TensorRole::kUp, "experts.gate_up_proj"},
    {BlockKind::kExperts, TensorRole::kDown, "experts.down_proj"},
    {BlockKind::kExperts, TensorRole::kGate, "experts.#.gate_proj"},
    {BlockKind::kExperts, TensorRole::kUp, "experts.#.up_proj"},
    {BlockKind::kExperts, TensorRole::kDown, "experts.#.down_proj"},
    {BlockKind::kExperts, TensorRole::kGate, "experts.switch_glu.gate_proj"},
    {BlockKind::kExperts, TensorRole::kUp, "experts.switch_glu.up_proj"},
    {BlockKind::kExperts, TensorRole::kDown, "experts.switch_glu.down_proj"},
    {BlockKind::kHead, TensorRole::kNorm, "norm"},
};
constexpr BoolField kOptions[] = {{"attention_bias", false, &ModelConfig::qkv_bias},
                                  {"attention_bias", false, &ModelConfig::attention_output_bias}};
constexpr NumberField kFactors[] = {{"final_logit_softcapping", 0, &ModelConfig::logits_cap}};
// Images alone may attend to later positions.
constexpr TextField kTexts[] = {{"use_bidirectional_attention", "vision"}};
// The dense MLP is the shared expert.
constexpr ExpertsFields kExperts = {
    .per_token = "top_k_experts",
    .shared_intermediate_size = "intermediate_size",
    .defaults = {
        .count = 128, .per_token = 8, .intermediate_size = 704, .shared_intermediate_size = 2112, .normalized = true, .norms_apart = true}};

}  // namespace

constinit const Family kGemma4Family = {.name = "gemma4",
                                        .model_types = kModelTypes,
                                        .architectures = kArchitectures,
                                        .prefixes = kTextPrefixes,
                                        .tensors = kTensors,
                                        .defaults = {.positions = 131072,
                                                     .kv_heads = 4,
                                                     .head_dim = 256,
                                                     .rope_theta = 1000000,
                                                     .window = 512,
                                                     .tie_embeddings = true,
                                                     .heads = 8,
                                                     .vocab_size = 262144,
                                                     .full_every = 6,
                                                     .activation = "gelu_pytorch_tanh"},
                                        .layers = LayerPattern::kWindowExcept,
                                        .options = kOptions,
                                        .factors = kFactors,
                                        .set_options =
                                            [](ModelConfig& config) {
                                              config.qk_norm = true;
                                              config.value_norm = true;
                                              config.after_norms = true;
                                              config.layer_scale = true;
                                              config.score_scale = 1;
                                            },
                                        .activation = "hidden_activation",
                                        .rotates_part_of_heads = true,
                                        .needs_rope_parameters = true,
                                        .experts = &kExperts,
                                        .stacks_experts = true,
                                        .texts = kTexts,
                                        .sliding_theta = 10000,
                                        .scales_embedding = true,
                                        .global_heads = true,
                                        .has_experts = "enable_moe_block"};

}  // namespace lime
