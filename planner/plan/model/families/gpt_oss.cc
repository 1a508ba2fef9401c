// gpt-oss: experts in mxfp4, a sink for every head, and a window on every other layer.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"gpt_oss"};
constexpr std::string_view kArchitectures[] = {"GptOssForCausalLM"};
constexpr BoolField kOptions[] = {{"attention_bias", true, &ModelConfig::qkv_bias},
                                  {"attention_bias", true, &ModelConfig::attention_output_bias}};
constexpr NumberField kFactors[] = {{"swiglu_limit", 7, &ModelConfig::activation_limit}};
constexpr TextField kTexts[] = {{"hidden_act", "silu"}};
constexpr std::string_view kAllowed[] = {"attention_bias"};
constexpr ExpertsFields kExperts = {.count = "num_local_experts",
                                    .intermediate_size = "intermediate_size",
                                    .defaults = {.count = 128,
                                                 .per_token = 4,
                                                 .intermediate_size = 2880,
                                                 .scoring = RouterScoring::kSoftmaxOfBest,
                                                 .router_bias = true,
                                                 .bias = true,
                                                 .alternates = true}};
// MLX has gate and up apart. Block stores have the experts apart.
constexpr TensorName kTensors[] = {
    {BlockKind::kEmbedding, TensorRole::kTokenEmbedding, "embed_tokens"},
    {BlockKind::kAttention, TensorRole::kNorm, "input_layernorm"},
    {BlockKind::kAttention, TensorRole::kQ, "self_attn.q_proj"},
    {BlockKind::kAttention, TensorRole::kK, "self_attn.k_proj"},
    {BlockKind::kAttention, TensorRole::kV, "self_attn.v_proj"},
    {BlockKind::kAttention, TensorRole::kSinks, "self_attn.sinks"},
    {BlockKind::kAttention, TensorRole::kO, "self_attn.o_proj"},
    {BlockKind::kExperts, TensorRole::kNorm, "post_attention_layernorm"},
    {BlockKind::kExperts, TensorRole::kRouter, "mlp.router"},
    {BlockKind::kExperts, TensorRole::kGateUp, "mlp.experts.gate_up_proj"},
    {BlockKind::kExperts, TensorRole::kGate, "mlp.experts.gate_proj"},
    {BlockKind::kExperts, TensorRole::kUp, "mlp.experts.up_proj"},
    {BlockKind::kExperts, TensorRole::kDown, "mlp.experts.down_proj"},
    {BlockKind::kExperts, TensorRole::kGateUp, "mlp.experts.#.gate_up_proj"},
    {BlockKind::kExperts, TensorRole::kGate, "mlp.experts.#.gate_proj"},
    {BlockKind::kExperts, TensorRole::kUp, "mlp.experts.#.up_proj"},
    {BlockKind::kExperts, TensorRole::kDown, "mlp.experts.#.down_proj"},
    {BlockKind::kHead, TensorRole::kNorm, "norm"},
};

}  // namespace

constinit const Family kGptOssFamily = {
    .name = "gpt_oss",
    .model_types = kModelTypes,
    .architectures = kArchitectures,
    .prefixes = kTextPrefixes,
    .tensors = kTensors,
    .defaults =
        {.positions = 131072, .kv_heads = 8, .head_dim = 64, .norm_eps = 1e-5, .rope_theta = 150000, .window = 128, .full_every = 2},
    .layers = LayerPattern::kWindowExcept,
    .options = kOptions,
    .factors = kFactors,
    .set_options =
        [](ModelConfig& config) {
          config.sinks = true;
          config.activation = Activation::kClampedSwiglu;
        },
    .allowed = kAllowed,
    .needs_rope_parameters = true,
    .experts = &kExperts,
    .stacks_experts = true,
    .texts = kTexts,
    .working_dtype = DType::kBF16};  // the published files name none

}  // namespace lime
