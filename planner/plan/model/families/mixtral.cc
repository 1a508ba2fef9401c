// Mixtral: Mistral with experts.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"mixtral"};
constexpr std::string_view kArchitectures[] = {"MixtralForCausalLM"};
constexpr ExpertsFields kExperts = {
    .count = "num_local_experts",
    .intermediate_size = "intermediate_size",
    .defaults = {.count = 8, .per_token = 2, .intermediate_size = 14336, .scoring = RouterScoring::kSoftmaxOfBest}};

}  // namespace

constinit const Family kMixtralFamily = {.name = "mixtral",
                                         .model_types = kModelTypes,
                                         .architectures = kArchitectures,
                                         .prefixes = kTextPrefixes,
                                         .tensors = kMixtralTensors,
                                         .defaults = {.positions = 131072, .kv_heads = 8, .norm_eps = 1e-5, .rope_theta = 1000000},
                                         .layers = LayerPattern::kWindow,
                                         .experts = &kExperts};

}  // namespace lime
