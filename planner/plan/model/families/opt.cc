// OPT: LayerNorm, learned positions, biases, an MLP of two matrices.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"opt"};
constexpr std::string_view kArchitectures[] = {"OPTForCausalLM"};
constexpr std::string_view kPrefixes[] = {"model.decoder.", "decoder."};
constexpr TensorName kTensors[] = {
    {BlockKind::kEmbedding, TensorRole::kTokenEmbedding, "embed_tokens"},
    {BlockKind::kEmbedding, TensorRole::kPositionEmbedding, "embed_positions"},
    {BlockKind::kAttention, TensorRole::kNorm, "self_attn_layer_norm"},
    {BlockKind::kAttention, TensorRole::kQ, "self_attn.q_proj"},
    {BlockKind::kAttention, TensorRole::kK, "self_attn.k_proj"},
    {BlockKind::kAttention, TensorRole::kV, "self_attn.v_proj"},
    {BlockKind::kAttention, TensorRole::kO, "self_attn.out_proj"},
    {BlockKind::kMlp, TensorRole::kNorm, "final_layer_norm"},
    {BlockKind::kMlp, TensorRole::kUp, "fc1"},
    {BlockKind::kMlp, TensorRole::kDown, "fc2"},
    {BlockKind::kHead, TensorRole::kNorm, "final_layer_norm"},
};
constexpr BoolField kOptions[] = {{"layer_norm_elementwise_affine", true, &ModelConfig::norm_affine},
                                  {"_remove_final_layer_norm", false, &ModelConfig::final_norm, /*inverted=*/true},
                                  {"enable_bias", true, &ModelConfig::qkv_bias},
                                  {"enable_bias", true, &ModelConfig::attention_output_bias},
                                  {"enable_bias", true, &ModelConfig::mlp_bias}};

}  // namespace

constinit const Family kOptFamily = {.name = "opt",
                                     .model_types = kModelTypes,
                                     .architectures = kArchitectures,
                                     .prefixes = kPrefixes,
                                     .tensors = kTensors,
                                     .defaults = {.tie_embeddings = true},
                                     .options = kOptions,
                                     .set_options =
                                         [](ModelConfig& config) {
                                           config.norm = NormKind::kLayer;
                                           config.gated_mlp = false;
                                           config.learned_positions = true;
                                           config.position_offset = 2;
                                           config.activation = Activation::kRelu;
                                         },
                                     .intermediate_size = "ffn_dim",
                                     .activation = "activation_function",
                                     .norm_eps = "",
                                     .grouped_queries = false};

}  // namespace lime
