// Tiny random models of every family and dtype, for tests that hold all of them to the same bits.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "testbed/make_model/make_model.h"

namespace lime {

inline std::vector<int32_t> RandomIds(uint32_t seed, int64_t count, int64_t vocab) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab);
  return ids;
}

struct Variant {
  std::string name;
  ModelFamily family = ModelFamily::kLlama;
  DType dtype = DType::kBF16;
  std::optional<Quantization> quantization;
  RopeType rope = RopeType::kDefault;
  Activation activation = Activation::kSilu;
  int64_t head_dim = 16;
  int64_t window = 0;
};

inline MakeModelOptions OptionsOf(const Variant& variant) {
  MakeModelOptions options;
  options.config.family = variant.family;
  options.config.quantization = variant.quantization;
  options.config.activation = variant.activation;
  options.config.rope.type = variant.rope;
  options.config.rope.factor = 4;
  options.config.rope.original_max_position = 64;
  options.config.num_heads = 4;
  options.config.num_kv_heads = variant.family == ModelFamily::kOpt ? 4 : 2;
  options.config.head_dim = variant.head_dim;
  options.config.hidden_size = variant.family == ModelFamily::kOpt ? 4 * variant.head_dim : 128;
  options.config.intermediate_size = variant.quantization ? 256 : 173;
  options.config.sliding_window = variant.window;
  options.config.tie_embeddings = variant.family == ModelFamily::kOpt;
  options.dtype = variant.dtype;
  return options;
}

inline std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  const std::pair<const char*, ModelFamily> families[] = {{"llama", ModelFamily::kLlama},
                                                          {"mistral", ModelFamily::kMistral},
                                                          {"qwen2", ModelFamily::kQwen2},
                                                          {"qwen3", ModelFamily::kQwen3},
                                                          {"opt", ModelFamily::kOpt}};
  const std::pair<const char*, DType> dtypes[] = {{"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}};
  for (const auto& [family_name, family] : families) {
    for (const auto& [dtype_name, dtype] : dtypes) {
      Variant variant{.name = std::string(family_name) + "_" + dtype_name, .family = family, .dtype = dtype, .quantization = std::nullopt};
      if (family == ModelFamily::kMistral) variant.window = 50;
      if (family == ModelFamily::kOpt) variant.rope = RopeType::kNone, variant.activation = Activation::kRelu, variant.head_dim = 24;
      variants.push_back(variant);
    }
  }
  for (const int bits : {3, 4, 6, 8}) {
    for (const auto& [dtype_name, dtype] : {std::pair{"bf16", DType::kBF16}, std::pair{"f16", DType::kF16}}) {
      variants.push_back(
          {.name = "llama_q" + std::to_string(bits) + "_" + dtype_name, .dtype = dtype, .quantization = Quantization{bits, 64}});
    }
  }
  for (const auto& [name, type] : {std::pair{"linear", RopeType::kLinear}, std::pair{"dynamic", RopeType::kDynamic},
                                   std::pair{"llama3", RopeType::kLlama3}, std::pair{"yarn", RopeType::kYarn}}) {
    variants.push_back({.name = std::string("llama_rope_") + name, .quantization = std::nullopt, .rope = type});
  }
  variants.push_back({.name = "llama_relu", .quantization = std::nullopt, .activation = Activation::kRelu});
  return variants;
}

}  // namespace lime
