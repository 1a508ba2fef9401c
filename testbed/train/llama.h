// LlamaForCausalLM for training and evaluation, in fp32, with Hugging Face's names of the tensors.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

namespace lime::train {

struct LlamaConfig {
  std::string hidden_act = "silu";  // or "relu": act(gate(x)) * up(x)
  int64_t hidden_size = 128;
  int64_t intermediate_size = 352;
  int64_t num_hidden_layers = 6;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 2;
  int64_t head_dim = 32;
  int64_t vocab_size = 1536;
  int64_t max_position_embeddings = 512;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
};

class Llama {
 public:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  // Weights are drawn from Normal(0, 1 / sqrt(inputs)); rows of the embedding have length one. The
  // two matrices of a layer that write to the residual stream begin at zero, so that every layer
  // first sees the tokens alone. With the usual deviation 0.02, the embeddings of a story's names
  // grow into one direction before attention can tell them apart. The model then learns very late
  // to copy a name. All weights require gradients.
  static Llama Random(const LlamaConfig& config, uint64_t seed);
  // `weights`: every tensor of Names(config), in that order.
  Llama(const LlamaConfig& config, Named weights);

  // Names and shapes in checkpoint order; the head is the embedding.
  static std::vector<std::pair<std::string, std::vector<int64_t>>> Shapes(const LlamaConfig& config);

  // ids: [batch, tokens], int64. Returns logits [batch * tokens, vocab].
  // With `activations`, appends the MLP's act(gate) of each layer: [batch * tokens, intermediate].
  at::Tensor Forward(const at::Tensor& ids, std::vector<at::Tensor>* activations = nullptr) const;

  const LlamaConfig& config() const { return config_; }
  const Named& weights() const { return weights_; }
  int64_t num_parameters() const;

 private:
  const at::Tensor& Weight(int64_t layer, int index) const { return weights_[1 + layer * 9 + index].second; }
  at::Tensor AttentionBlock(const at::Tensor& x, int64_t layer, int64_t batch) const;
  at::Tensor MlpBlock(const at::Tensor& x, int64_t layer, std::vector<at::Tensor>* activations) const;

  LlamaConfig config_;
  Named weights_;
};

}  // namespace lime::train
