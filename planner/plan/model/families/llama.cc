// Llama 2 and 3.x.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"llama"};
constexpr std::string_view kArchitectures[] = {"LlamaForCausalLM"};
constexpr BoolField kOptions[] = {{"attention_bias", false, &ModelConfig::qkv_bias},
                                  {"attention_bias", false, &ModelConfig::attention_output_bias},
                                  {"mlp_bias", false, &ModelConfig::mlp_bias}};

}  // namespace

constinit const Family kLlamaFamily = {.name = "llama",
                                       .model_types = kModelTypes,
                                       .architectures = kArchitectures,
                                       .prefixes = kTextPrefixes,
                                       .tensors = kLlamaTensors,
                                       .options = kOptions};

}  // namespace lime
