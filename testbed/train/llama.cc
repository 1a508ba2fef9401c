#include "testbed/train/llama.h"

#include <torch/utils.h>

#include <cmath>

#include "testbed/train/attention.h"
#include "testbed/train/fused_ops.h"

namespace lime::train {
namespace {

// The weights of a layer, in checkpoint order.
enum LayerWeight { kInputNorm, kQ, kK, kV, kO, kPostNorm, kGate, kUp, kDown };

bool WritesResidual(const std::string& name) {
  return name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
}

}  // namespace

std::vector<std::pair<std::string, std::vector<int64_t>>> Llama::Shapes(const LlamaConfig& c) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> out;
  const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  out.push_back({"model.embed_tokens.weight", {c.vocab_size, c.hidden_size}});
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    out.push_back({layer + "input_layernorm.weight", {c.hidden_size}});
    out.push_back({layer + "self_attn.q_proj.weight", {q, c.hidden_size}});
    out.push_back({layer + "self_attn.k_proj.weight", {kv, c.hidden_size}});
    out.push_back({layer + "self_attn.v_proj.weight", {kv, c.hidden_size}});
    out.push_back({layer + "self_attn.o_proj.weight", {c.hidden_size, q}});
    out.push_back({layer + "post_attention_layernorm.weight", {c.hidden_size}});
    out.push_back({layer + "mlp.gate_proj.weight", {c.intermediate_size, c.hidden_size}});
    out.push_back({layer + "mlp.up_proj.weight", {c.intermediate_size, c.hidden_size}});
    out.push_back({layer + "mlp.down_proj.weight", {c.hidden_size, c.intermediate_size}});
  }
  out.push_back({"model.norm.weight", {c.hidden_size}});
  return out;
}

Llama Llama::Random(const LlamaConfig& config, uint64_t seed) {
  torch::manual_seed(seed);
  Named weights;
  for (const auto& [name, shape] : Shapes(config)) {
    const double sigma = WritesResidual(name) ? 0 : 1 / std::sqrt(static_cast<double>(shape.back()));
    weights.emplace_back(name, shape.size() == 1 ? torch::ones(shape) : torch::randn(shape) * sigma);
  }
  return Llama(config, std::move(weights));
}

Llama::Llama(const LlamaConfig& config, Named weights) : config_(config), weights_(std::move(weights)) {
  for (auto& [name, weight] : weights_) weight.set_requires_grad(true);
}

int64_t Llama::num_parameters() const {
  int64_t n = 0;
  for (const auto& [name, weight] : weights_) n += weight.numel();
  return n;
}

at::Tensor Llama::AttentionBlock(const at::Tensor& x, int64_t layer, int64_t batch) const {
  const AttentionShape shape{
      batch, x.size(0) / batch, config_.num_attention_heads, config_.num_key_value_heads, config_.head_dim, config_.rope_theta};
  const at::Tensor normed = RmsNorm(x, Weight(layer, kInputNorm), config_.rms_norm_eps);  // [batch * tokens, hidden]
  const at::Tensor q = at::linear(normed, Weight(layer, kQ));                             // [batch * tokens, heads * head_dim]
  const at::Tensor k = at::linear(normed, Weight(layer, kK));
  const at::Tensor v = at::linear(normed, Weight(layer, kV));
  return x + at::linear(CausalAttention(q, k, v, shape), Weight(layer, kO));
}

at::Tensor Llama::MlpBlock(const at::Tensor& x, int64_t layer, std::vector<at::Tensor>* activations) const {
  const bool relu = config_.hidden_act == "relu";
  const at::Tensor normed = RmsNorm(x, Weight(layer, kPostNorm), config_.rms_norm_eps);
  const at::Tensor gate = at::linear(normed, Weight(layer, kGate));  // [batch * tokens, intermediate]
  const at::Tensor up = at::linear(normed, Weight(layer, kUp));
  if (activations != nullptr) activations->push_back(relu ? at::relu(gate) : at::silu(gate));
  return x + at::linear(Gated(gate, up, relu), Weight(layer, kDown));
}

at::Tensor Llama::Forward(const at::Tensor& ids, std::vector<at::Tensor>* activations) const {
  const at::Tensor& embedding = weights_.front().second;
  at::Tensor x = at::embedding(embedding, ids.reshape(-1));  // [batch * tokens, hidden]
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    x = AttentionBlock(x, layer, ids.size(0));
    x = MlpBlock(x, layer, activations);
  }
  return at::linear(RmsNorm(x, weights_.back().second, config_.rms_norm_eps), embedding);
}

}  // namespace lime::train
