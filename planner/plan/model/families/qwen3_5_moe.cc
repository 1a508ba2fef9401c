// Qwen3.5 and 3.6 with experts: 35B-A3B, 122B-A10B, 397B-A17B.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen3_5_moe_text", "qwen3_5_moe"};
constexpr std::string_view kArchitectures[] = {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"};
constexpr BoolField kOptions[] = {{"attention_bias", false, &ModelConfig::qkv_bias},
                                  {"attention_bias", false, &ModelConfig::attention_output_bias},
                                  {"attn_output_gate", true, &ModelConfig::attention_gate}};
constexpr std::string_view kAllowed[] = {"use_qk_norm", "qk_norm"};
constexpr std::string_view kRefused[] = {"mlp_only_layers"};
constexpr ExpertsFields kExperts = {
    .shared_intermediate_size = "shared_expert_intermediate_size",
    .defaults = {
        .count = 256, .per_token = 8, .intermediate_size = 512, .shared_intermediate_size = 512, .normalized = true, .shared_scale = true}};

}  // namespace

constinit const Family kQwen3_5MoeFamily = {
    .name = "qwen3_5_moe",
    .model_types = kModelTypes,
    .architectures = kArchitectures,
    .prefixes = kTextPrefixes,
    .tensors = kLlamaTensors,
    .defaults = {.positions = 32768,
                 .kv_heads = 2,
                 .head_dim = 256,
                 .partial_rotation = 0.25,
                 .linear_attention = {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .conv_width = 4}},
    .layers = LayerPattern::kLinear,
    .options = kOptions,
    .set_options =
        [](ModelConfig& config) {
          config.qk_norm = true;
          config.norm_offset = 1;
        },
    .allowed = kAllowed,
    .refused = kRefused,
    .rotates_part_of_heads = true,
    .experts = &kExperts,
    .stacks_experts = true};

}  // namespace lime
