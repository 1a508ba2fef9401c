// Bamboo and TurboSparse-Mistral: Mistral with dReLU.
//
// hidden_act says "relu", but the class passes gate and up through it: relu(gate) * relu(up)
// (TurboSparse, Song et al. 2024, equation 3). Tensors of a predictor, which checkpoints have beside
// the MLP, are not used.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"bamboo"};
constexpr std::string_view kArchitectures[] = {"BambooForCausalLM"};

}  // namespace

constinit const Family kBambooFamily = {.name = "bamboo",
                                        .model_types = kModelTypes,
                                        .architectures = kArchitectures,
                                        .prefixes = kTextPrefixes,
                                        .tensors = kLlamaTensors,
                                        .defaults = {.positions = 131072, .kv_heads = 8, .window = 4096},
                                        .layers = LayerPattern::kWindow,
                                        .set_options = [](ModelConfig& config) { config.activation = Activation::kDoubleRelu; }};

}  // namespace lime
