// A small model on three small devices that cannot hold it, for tests and golden files.
#pragma once

#include <string>
#include <vector>

#include "planner/plan/model/described_model.h"
#include "planner/problem/plan_problem.h"

namespace lime {

inline std::string LlamaConfig(int layers, int hidden, int inner, int vocab, bool tied = false) {
  return absl::StrCat(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "num_hidden_layers": )",
                      layers, R"(, "hidden_size": )", hidden,
                      R"(, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": )", inner, R"(, "vocab_size": )", vocab,
                      R"(, "max_position_embeddings": 4096, "tie_word_embeddings": )", tied ? "true" : "false", "}");
}

// Qwen3.5: of four layers, three have linear attention, the last one KV.
inline std::string HybridConfig(int layers, int hidden, int inner, int vocab) {
  return absl::StrCat(R"({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": {)",
                      R"("model_type": "qwen3_5_text", "dtype": "bfloat16", "num_hidden_layers": )", layers, R"(, "hidden_size": )", hidden,
                      R"(, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": )", inner,
                      R"(, "vocab_size": )", vocab, R"(, "max_position_embeddings": 16384, "full_attention_interval": 4)",
                      R"(, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64)",
                      R"(, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "tie_word_embeddings": false)",
                      R"(, "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}})");
}

inline ModelSpec SmallModel() {
  return *DescribeModel(LlamaConfig(/*layers=*/4, /*hidden=*/1024, /*inner=*/4096, /*vocab=*/8000), "small");
}

inline ModelSpec SmallHybrid(int layers = 4) {
  return *DescribeModel(HybridConfig(layers, /*hidden=*/1024, /*inner=*/4096, /*vocab=*/8000), "hybrid");
}

// Rates of a small board: memory, multiply-adds, a disk, a link of 100 Mbit/s.
inline DeviceProfile BoardProfile(double memory_rate, double disk_rate) {
  DeviceProfile profile = {.cpu = "board", .threads = 4, .read_bytes_per_second = memory_rate, .flops = 100e9};
  profile.SetDisk({{.read_bytes = 4096, .depth = 1, .bytes_per_second = disk_rate / 20, .latency_ms = 0.1},
                   {.read_bytes = kMiB, .depth = 8, .bytes_per_second = disk_rate, .latency_ms = 1}});
  return profile;
}

inline ClusterDevice Board(const std::string& name, Bytes budget, double memory_rate = 10e9, double disk_rate = 1e9) {
  return {.name = name,
          .numerics_id = "x86-f32-1",
          .budget = budget,
          .runtime = 8 * kMiB,
          .activations = 4 * kMiB,
          .margin = 1 * kMiB,
          .profile = BoardProfile(memory_rate, disk_rate)};
}

}  // namespace lime
