// Small models of every family with random weights, for the tests of backends.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/plan/micro_batch.h"
#include "planner/plan/model/described_model.h"
#include "planner/plan/model/model_spec.h"
#include "tests/kernels/cpu_test_util.h"

namespace lime {

inline constexpr int64_t kRandomModelContext = 1024, kRandomModelVocab = 300;

inline std::string LlamaLike(const std::string& names, const std::string& rest) {
  return "{" + names + R"(, "num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 160, "vocab_size": 300, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, )" +
         rest + "}";
}

// Of two layers of these kinds, with gates and rotation of a quarter of the head.
inline std::string Qwen35Like(const std::string& layer_types) {
  return R"({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "tie_word_embeddings": false, "text_config":
    {"model_type": "qwen3_5_text", "dtype": "bfloat16", "num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 4,
     "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 160, "vocab_size": 300, "max_position_embeddings": 1024,
     "rms_norm_eps": 1e-6, "hidden_act": "silu", "attn_output_gate": true, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 24,
     "linear_value_head_dim": 40, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "layer_types": [)" +
         layer_types + R"(], "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}})";
}

// config.json of "llama", "qwen3", "opt", "qwen3_5" (linear attention, then attention), "gates"
// (qwen3_5 without linear attention), "fatrelu", "drelu", or "mistral_N" with a window of N.
inline std::string RandomModelConfig(const std::string& name) {
  if (name == "qwen3_5") return Qwen35Like(R"("linear_attention", "full_attention")");
  if (name == "gates") return Qwen35Like(R"("full_attention", "full_attention")");
  if (name == "llama")
    return LlamaLike(R"("architectures": ["LlamaForCausalLM"], "model_type": "llama")", R"("dtype": "bfloat16", "head_dim": 64)");
  if (name == "qwen3")
    return LlamaLike(R"("architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3")", R"("dtype": "float16", "head_dim": 32)");
  if (name == "fatrelu")
    return LlamaLike(R"("architectures": ["SparseLlamaForCausalLM"], "model_type": "sparsellama")",
                     R"("dtype": "bfloat16", "head_dim": 24, "hidden_act": "fatrelu", "hidden_act_param": 0.25)");
  if (name == "drelu")
    return LlamaLike(R"("architectures": ["BambooForCausalLM"], "model_type": "bamboo")",
                     R"("dtype": "bfloat16", "head_dim": 24, "hidden_act": "relu")");
  if (name == "opt") {
    return R"({"architectures": ["OPTForCausalLM"], "model_type": "opt", "dtype": "float32", "num_hidden_layers": 2, "hidden_size": 96,
      "word_embed_proj_dim": 96, "num_attention_heads": 4, "ffn_dim": 160, "vocab_size": 300, "max_position_embeddings": 1024,
      "activation_function": "relu", "do_layer_norm_before": true})";
  }
  return LlamaLike(R"("architectures": ["MistralForCausalLM"], "model_type": "mistral")",
                   R"("dtype": "bfloat16", "head_dim": 24, "sliding_window": )" + name.substr(name.find('_') + 1));
}

// The model of RandomModelConfig, or "options": qwen3 with options that change no tensor.
inline ModelSpec RandomModelSpec(const std::string& name) {
  ModelSpec spec = DescribeModel(RandomModelConfig(name == "options" ? "qwen3" : name), name).value();
  if (name == "options") {
    ModelConfig& config = spec.config;
    config.norm_offset = 1;
    config.score_scale = 0.3;
    config.embedding_multiplier = 3;
    config.residual_multiplier = 0.5;
    config.logits_divisor = 1.375;
    config.ropes[0].dims = 16;
    config.layers[0].window = 20;
    config.layers[1].rope = -1;
  }
  return spec;
}

// Random tensors, in the order of the spec's blocks.
inline std::vector<std::vector<cpu::Array>> RandomWeights(const ModelSpec& spec) {
  std::vector<std::vector<cpu::Array>> weights;
  uint32_t seed = 1;
  for (const BlockSpec& block : spec.blocks) {
    weights.emplace_back();
    for (const TensorSpec& tensor : block.tensors) {
      int64_t elements = 1;
      for (const int64_t size : tensor.info.shape) elements *= size;
      const float scale = tensor.info.shape.size() == 2 ? 2 / std::sqrt(static_cast<float>(tensor.info.shape[1])) : 0.7F;
      weights.back().push_back(cpu::RandomArray(tensor.info.dtype, elements, seed++, scale));
    }
  }
  return weights;
}

// Rows [begin, end) of one sequence; the last one asks for logits.
inline void AddRows(int32_t sequence, int32_t begin, int32_t end, MicroBatch& batch) {
  for (int32_t p = begin; p < end; ++p) {
    batch.rows.push_back({.sequence = sequence,
                          .token = static_cast<int32_t>((17 * p + 31 * sequence + p / 7) % kRandomModelVocab),
                          .position = p,
                          .wants_logits = p == end - 1});
  }
}

}  // namespace lime
