// Phi-3 to Phi-4: q, k and v in one tensor, gate and up in another, and a window on all layers.
#include "planner/plan/model/families/families.h"

namespace lime {
namespace {

constexpr std::string_view kModelTypes[] = {"phi3"};
constexpr std::string_view kArchitectures[] = {"Phi3ForCausalLM"};
constexpr TensorName kTensors[] = {
    {BlockKind::kEmbedding, TensorRole::kTokenEmbedding, "embed_tokens"},
    {BlockKind::kAttention, TensorRole::kNorm, "input_layernorm"},
    {BlockKind::kAttention, TensorRole::kQ, "self_attn.qkv_proj"},
    {BlockKind::kAttention, TensorRole::kK, "self_attn.qkv_proj"},
    {BlockKind::kAttention, TensorRole::kV, "self_attn.qkv_proj"},
    {BlockKind::kAttention, TensorRole::kO, "self_attn.o_proj"},
    {BlockKind::kMlp, TensorRole::kNorm, "post_attention_layernorm"},
    {BlockKind::kMlp, TensorRole::kGate, "mlp.gate_up_proj"},
    {BlockKind::kMlp, TensorRole::kUp, "mlp.gate_up_proj"},
    {BlockKind::kMlp, TensorRole::kDown, "mlp.down_proj"},
    {BlockKind::kHead, TensorRole::kNorm, "norm"},
};

}  // namespace

constinit const Family kPhi3Family = {.name = "phi3",
                                      .model_types = kModelTypes,
                                      .architectures = kArchitectures,
                                      .prefixes = kTextPrefixes,
                                      .tensors = kTensors,
                                      .defaults = {.positions = 4096, .norm_eps = 1e-5},
                                      .layers = LayerPattern::kWindow,
                                      .rotates_part_of_heads = true,
                                      .long_rope = true};

}  // namespace lime
