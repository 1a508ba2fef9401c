// Ministral 3 and Devstral 2: Mistral, without a window unless one is stated. Queries grow with the
// position.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"ministral3"};
constexpr std::string_view kArchitectures[] = {"Ministral3ForCausalLM"};

}  // namespace

constinit const Family kMinistral3Family = {.name = "ministral3",
                                            .model_types = kModelTypes,
                                            .architectures = kArchitectures,
                                            .prefixes = kTextPrefixes,
                                            .tensors = kLlamaTensors,
                                            .defaults = {.positions = 262144, .kv_heads = 8, .head_dim = 128, .norm_eps = 1e-5},
                                            .layers = LayerPattern::kWindow,
                                            .needs_rope_parameters = true,
                                            .scales_queries = true};

}  // namespace lime
