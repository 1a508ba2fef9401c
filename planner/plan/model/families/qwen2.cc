// Qwen2 and Qwen2.5: biases on q, k and v.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen2"};
constexpr std::string_view kArchitectures[] = {"Qwen2ForCausalLM"};
constexpr std::string_view kAllowed[] = {"attention_bias"};  // q, k and v always have one

}  // namespace

constinit const Family kQwen2Family = {.name = "qwen2",
                                       .model_types = kModelTypes,
                                       .architectures = kArchitectures,
                                       .prefixes = kTextPrefixes,
                                       .tensors = kLlamaTensors,
                                       .defaults = {.positions = 32768, .kv_heads = 32, .window = 4096},
                                       .layers = LayerPattern::kWindowFrom,
                                       .set_options = [](ModelConfig& config) { config.qkv_bias = true; },
                                       .allowed = kAllowed};

}  // namespace lime
