// Qwen3 with experts: 30B-A3B, 235B-A22B, Coder.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen3_moe"};
constexpr std::string_view kArchitectures[] = {"Qwen3MoeForCausalLM"};
constexpr BoolField kOptions[] = {{"attention_bias", false, &ModelConfig::qkv_bias},
                                  {"attention_bias", false, &ModelConfig::attention_output_bias}};
constexpr std::string_view kAllowed[] = {"use_qk_norm", "qk_norm"};
constexpr std::string_view kRefused[] = {"use_sliding_window"};
constexpr ExpertsFields kExperts = {.normalized = "norm_topk_prob",
                                    .dense_layers = "mlp_only_layers",
                                    .interval = "decoder_sparse_step",
                                    .defaults = {.count = 128, .per_token = 8, .intermediate_size = 768}};

}  // namespace

constinit const Family kQwen3MoeFamily = {.name = "qwen3_moe",
                                          .model_types = kModelTypes,
                                          .architectures = kArchitectures,
                                          .prefixes = kTextPrefixes,
                                          .tensors = kLlamaTensors,
                                          .defaults = {.positions = 32768, .kv_heads = 4},
                                          .options = kOptions,
                                          .set_options = [](ModelConfig& config) { config.qk_norm = true; },
                                          .allowed = kAllowed,
                                          .refused = kRefused,
                                          .experts = &kExperts};

}  // namespace lime
