// Mistral: Llama with a window.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"mistral"};
constexpr std::string_view kArchitectures[] = {"MistralForCausalLM"};

}  // namespace

constinit const Family kMistralFamily = {.name = "mistral",
                                         .model_types = kModelTypes,
                                         .architectures = kArchitectures,
                                         .prefixes = kTextPrefixes,
                                         .tensors = kLlamaTensors,
                                         .defaults = {.positions = 131072, .kv_heads = 8, .window = 4096},
                                         .layers = LayerPattern::kWindow};

}  // namespace lime
