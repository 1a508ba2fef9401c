// ProSparse: Llama 2 with FATReLU, whose class calls itself SparseLlama.
//
// Other classes of that name have sparse attention and the model_type of Llama. They are refused.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"sparsellama"};
constexpr std::string_view kArchitectures[] = {"SparseLlamaForCausalLM"};

}  // namespace

constinit const Family kSparseLlamaFamily = {.name = "sparsellama",
                                             .model_types = kModelTypes,
                                             .architectures = kArchitectures,
                                             .prefixes = kTextPrefixes,
                                             .tensors = kLlamaTensors,
                                             .defaults = {.activation = "fatrelu"},
                                             .only_its_types = true};

}  // namespace lime
