// SmolLM3: Llama, but every fourth layer does not rotate.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"smollm3"};
constexpr std::string_view kArchitectures[] = {"SmolLM3ForCausalLM"};
constexpr BoolField kOptions[] = {{"attention_bias", false, &ModelConfig::qkv_bias},
                                  {"attention_bias", false, &ModelConfig::attention_output_bias},
                                  {"mlp_bias", false, &ModelConfig::mlp_bias}};
constexpr std::string_view kRefused[] = {"use_sliding_window"};  // of the layers that do not rotate alone

}  // namespace

constinit const Family kSmolLm3Family = {.name = "smollm3",
                                         .model_types = kModelTypes,
                                         .architectures = kArchitectures,
                                         .prefixes = kTextPrefixes,
                                         .tensors = kLlamaTensors,
                                         .defaults = {.positions = 32768, .kv_heads = 4, .rope_theta = 2000000, .tie_embeddings = true},
                                         .options = kOptions,
                                         .refused = kRefused,
                                         .skips_rotation = true};

}  // namespace lime
