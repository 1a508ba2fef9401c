// Qwen3.5 to 3.8, the dense models: three of four layers have linear attention. The others have a
// gate for each head, and a quarter of each head rotates.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen3_5_text", "qwen3_5"};
constexpr std::string_view kArchitectures[] = {"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"};
constexpr BoolField kOptions[] = {{"attention_bias", false, &ModelConfig::qkv_bias},
                                  {"attention_bias", false, &ModelConfig::attention_output_bias},
                                  {"attn_output_gate", true, &ModelConfig::attention_gate}};
constexpr std::string_view kAllowed[] = {"use_qk_norm", "qk_norm"};

}  // namespace

constinit const Family kQwen3_5Family = {
    .name = "qwen3_5",
    .model_types = kModelTypes,
    .architectures = kArchitectures,
    .prefixes = kTextPrefixes,
    .tensors = kLlamaTensors,
    .defaults = {.positions = 32768,
                 .kv_heads = 4,
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
    .rotates_part_of_heads = true};

}  // namespace lime
