// MiniMax-M2 to M2.7: RMSNorm over all heads of q and of k at once, and a router with a correction.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"minimax_m2"};
constexpr std::string_view kArchitectures[] = {"MiniMaxM2ForCausalLM"};
constexpr BoolField kOptions[] = {{"use_qk_norm", true, &ModelConfig::qk_norm}};
constexpr TextField kTexts[] = {{"scoring_func", "sigmoid"}, {"qk_norm_type", "per_layer"}};
constexpr std::string_view kRefused[] = {"shared_intermediate_size"};
constexpr ExpertsFields kExperts = {.count = "num_local_experts",
                                    .intermediate_size = "intermediate_size",
                                    .correction = "use_routing_bias",
                                    .defaults = {.count = 256,
                                                 .per_token = 8,
                                                 .intermediate_size = 1536,
                                                 .scoring = RouterScoring::kSigmoid,
                                                 .normalized = true,
                                                 .correction = true}};

}  // namespace

constinit const Family kMiniMaxM2Family = {.name = "minimax_m2",
                                           .model_types = kModelTypes,
                                           .architectures = kArchitectures,
                                           .prefixes = kTextPrefixes,
                                           .tensors = kMixtralTensors,
                                           .defaults = {.positions = 196608, .kv_heads = 8, .head_dim = 128, .rope_theta = 5000000},
                                           .options = kOptions,
                                           .set_options = [](ModelConfig& config) { config.qk_norm_all_heads = true; },
                                           .refused = kRefused,
                                           .rotates_part_of_heads = true,
                                           .experts = &kExperts,
                                           .texts = kTexts,
                                           .rotated_dims = "rotary_dim"};

}  // namespace lime
