// Gemma 3: windows on five of six layers, which rotate otherwise than the others; norms before and
// after each half of a layer, stored minus one; GeGLU; a scaled embedding.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"gemma3_text", "gemma3"};
constexpr std::string_view kArchitectures[] = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"};
constexpr TensorName kTensors[] = {
    {BlockKind::kEmbedding, TensorRole::kTokenEmbedding, "embed_tokens"},
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
    {BlockKind::kHead, TensorRole::kNorm, "norm"},
};
constexpr BoolField kOptions[] = {{"attention_bias", false, &ModelConfig::qkv_bias},
                                  {"attention_bias", false, &ModelConfig::attention_output_bias}};
constexpr NumberField kFactors[] = {{"query_pre_attn_scalar", 256, &ModelConfig::score_scale, /*inverse_root=*/true},
                                    {"attn_logit_softcapping", 0, &ModelConfig::score_cap},
                                    {"final_logit_softcapping", 0, &ModelConfig::logits_cap}};
constexpr std::string_view kAllowed[] = {"use_qk_norm", "qk_norm"};

}  // namespace

constinit const Family kGemma3Family = {.name = "gemma3",
                                        .model_types = kModelTypes,
                                        .architectures = kArchitectures,
                                        .prefixes = kTextPrefixes,
                                        .tensors = kTensors,
                                        .defaults = {.positions = 131072,
                                                     .kv_heads = 4,
                                                     .head_dim = 256,
                                                     .rope_theta = 1000000,
                                                     .window = 4096,
                                                     .tie_embeddings = true,
                                                     .heads = 8,
                                                     .vocab_size = 262208,
                                                     .full_every = 6,
                                                     .activation = "gelu_pytorch_tanh"},
                                        .layers = LayerPattern::kWindowExcept,
                                        .options = kOptions,
                                        .factors = kFactors,
                                        .set_options =
                                            [](ModelConfig& config) {
                                              config.qk_norm = true;
                                              config.norm_offset = 1;
                                              config.after_norms = true;
                                            },
                                        .allowed = kAllowed,
                                        .activation = "hidden_activation",
                                        .sliding_theta = 10000,
                                        .scales_embedding = true};

}  // namespace lime
