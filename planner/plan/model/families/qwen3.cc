// Qwen3: RMSNorm on every head of q and k.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen3"};
constexpr std::string_view kArchitectures[] = {"Qwen3ForCausalLM"};
constexpr BoolField kOptions[] = {{"attention_bias", false, &ModelConfig::qkv_bias},
                                  {"attention_bias", false, &ModelConfig::attention_output_bias}};
constexpr std::string_view kAllowed[] = {"use_qk_norm", "qk_norm"};

}  // namespace

constinit const Family kQwen3Family = {.name = "qwen3",
                                       .model_types = kModelTypes,
                                       .architectures = kArchitectures,
                                       .prefixes = kTextPrefixes,
                                       .tensors = kLlamaTensors,
                                       .defaults = {.positions = 32768, .kv_heads = 32, .head_dim = 128, .window = 4096},
                                       .layers = LayerPattern::kWindowFrom,
                                       .options = kOptions,
                                       .set_options = [](ModelConfig& config) { config.qk_norm = true; },
                                       .allowed = kAllowed};

}  // namespace lime
