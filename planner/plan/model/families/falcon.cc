// Falcon: both halves of a layer read the same input; LayerNorm, GELU, few key heads, and q, k and v
// in one tensor, key head by key head. Models since Falcon 40B may have a norm for each half.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"falcon"};
constexpr std::string_view kArchitectures[] = {"FalconForCausalLM"};
constexpr std::string_view kPrefixes[] = {"transformer.", ""};
constexpr TensorName kTensors[] = {
    {BlockKind::kEmbedding, TensorRole::kTokenEmbedding, "word_embeddings"},
    {BlockKind::kAttention, TensorRole::kNorm, "ln_attn", &ModelConfig::parallel_norms},
    {BlockKind::kAttention, TensorRole::kNorm, "input_layernorm"},
    {BlockKind::kAttention, TensorRole::kMlpNorm, "ln_mlp"},
    {BlockKind::kAttention, TensorRole::kQkvByHead, "self_attention.query_key_value"},
    {BlockKind::kAttention, TensorRole::kO, "self_attention.dense"},
    {BlockKind::kMlp, TensorRole::kUp, "mlp.dense_h_to_4h"},
    {BlockKind::kMlp, TensorRole::kDown, "mlp.dense_4h_to_h"},
    {BlockKind::kHead, TensorRole::kNorm, "ln_f"},
};
constexpr BoolField kOptions[] = {
    {"bias", false, &ModelConfig::qkv_bias}, {"bias", false, &ModelConfig::attention_output_bias}, {"bias", false, &ModelConfig::mlp_bias}};
constexpr std::string_view kRefused[] = {"apply_residual_connection_post_layernorm"};

}  // namespace

constinit const Family kFalconFamily = {.name = "falcon",
                                        .model_types = kModelTypes,
                                        .architectures = kArchitectures,
                                        .prefixes = kPrefixes,
                                        .tensors = kTensors,
                                        .defaults = {.norm_eps = 1e-5, .tie_embeddings = true, .inner_factor = 4, .activation = "gelu"},
                                        .options = kOptions,
                                        .set_options =
                                            [](ModelConfig& config) {
                                              config.norm = NormKind::kLayer;
                                              config.gated_mlp = false;
                                              config.parallel_halves = true;
                                              config.qkv_by_head = true;
                                            },
                                        .refused = kRefused,
                                        .intermediate_size = "ffn_hidden_size",
                                        .activation = "activation",
                                        .norm_eps = "layer_norm_epsilon",
                                        .grouped_queries = false,
                                        .layer_list = "h.",
                                        .falcon_heads = true};

}  // namespace lime
