// Qwen3-Next: 80B-A3B, Coder-Next. The mathematics of Qwen3.5 with experts; the matrices of linear
// attention are stored by key head.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen3_next"};
constexpr std::string_view kArchitectures[] = {"Qwen3NextForCausalLM"};
constexpr BoolField kOptions[] = {{"attention_bias", false, &ModelConfig::qkv_bias},
                                  {"attention_bias", false, &ModelConfig::attention_output_bias}};
constexpr std::string_view kAllowed[] = {"use_qk_norm", "qk_norm"};
constexpr ExpertsFields kExperts = {.shared_intermediate_size = "shared_expert_intermediate_size",
                                    .normalized = "norm_topk_prob",
                                    .dense_layers = "mlp_only_layers",
                                    .interval = "decoder_sparse_step",
                                    .defaults = {.count = 512,
                                                 .per_token = 10,
                                                 .intermediate_size = 512,
                                                 .shared_intermediate_size = 512,
                                                 .normalized = true,
                                                 .shared_scale = true}};

}  // namespace

constinit const Family kQwen3NextFamily = {
    .name = "qwen3_next",
    .model_types = kModelTypes,
    .architectures = kArchitectures,
    .prefixes = kTextPrefixes,
    .tensors = kLlamaTensors,
    .defaults =
        {.positions = 32768,
         .kv_heads = 2,
         .head_dim = 256,
         .partial_rotation = 0.25,
         .linear_attention = {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .conv_width = 4, .by_key_head = true}},
    .layers = LayerPattern::kLinear,
    .options = kOptions,
    .set_options =
        [](ModelConfig& config) {
          config.qk_norm = true;
          config.norm_offset = 1;
          config.attention_gate = true;
        },
    .allowed = kAllowed,
    .rotates_part_of_heads = true,
    .experts = &kExperts};

}  // namespace lime
