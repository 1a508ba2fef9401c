// Granite 3 and 4, the dense models: Llama with four factors.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"granite"};
constexpr std::string_view kArchitectures[] = {"GraniteForCausalLM"};
constexpr BoolField kOptions[] = {{"attention_bias", false, &ModelConfig::qkv_bias},
                                  {"attention_bias", false, &ModelConfig::attention_output_bias},
                                  {"mlp_bias", false, &ModelConfig::mlp_bias}};
constexpr NumberField kFactors[] = {{"embedding_multiplier", 1, &ModelConfig::embedding_multiplier},
                                    {"residual_multiplier", 1, &ModelConfig::residual_multiplier},
                                    {"attention_multiplier", 1, &ModelConfig::score_scale},
                                    {"logits_scaling", 1, &ModelConfig::logits_divisor}};

}  // namespace

constinit const Family kGraniteFamily = {.name = "granite",
                                         .model_types = kModelTypes,
                                         .architectures = kArchitectures,
                                         .prefixes = kTextPrefixes,
                                         .tensors = kLlamaTensors,
                                         .options = kOptions,
                                         .factors = kFactors};

}  // namespace lime
