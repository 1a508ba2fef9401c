// Tiny random models of every family and dtype, for tests that compare bits.
#pragma once

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "testbed/make_model/make_model.h"
#include "tests/cases.h"

namespace lime {

inline std::vector<int32_t> RandomIds(uint32_t seed, int64_t count, int64_t vocab) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab);
  return ids;
}

// One scale for each row.
inline constexpr Quantization kFp8Rows = {.bits = 8, .group_size = 128, .code = WeightCode::kFp8, .scales = ScaleShape::kRows};

struct Variant {
  std::string name;
  std::string family = "llama";
  DType dtype = DType::kBF16;
  std::optional<Quantization> quantization;
  RopeType rope = RopeType::kDefault;
  Activation activation = Activation::kSilu;
  int64_t head_dim = 16;
  int64_t window = 0;
  bool dense = false;               // of a family that may have experts: without them
  std::optional<DType> norm_dtype;  // if it differs from `dtype`
};

// Whether layers have linear attention, with a state of each sequence.
inline bool HasState(const Variant& variant) {
  return variant.family == "qwen3_5" || variant.family == "qwen3_5_moe" || variant.family == "qwen3_next";
}

inline MakeModelOptions OptionsOf(const Variant& variant) {
  MakeModelOptions options;
  options.config.family = variant.family;
  options.config.quantization = variant.quantization;
  options.config.activation = variant.activation;
  options.config.rope.type = variant.rope;
  options.config.rope.factor = 4;
  options.config.rope.original_max_position = 64;
  options.config.num_heads = 4;
  options.config.num_kv_heads = variant.family == "opt" ? 4 : 2;
  options.config.head_dim = variant.head_dim;
  options.config.hidden_size = variant.family == "opt" ? 4 * variant.head_dim : 128;
  options.config.intermediate_size = variant.quantization ? 256 : 173;
  options.config.sliding_window = variant.window;
  options.config.tie_embeddings = variant.family == "opt";
  if (HasState(variant)) options.config.num_layers = 5;                // linear, linear, linear, full, linear
  if (variant.window > 0) options.config.full_attention_interval = 2;  // one layer with the window, one without, if not all have it
  if (variant.dense) options.config.num_experts = 0, options.config.num_layers = 4;  // of Gemma 4, the last two share KV
  if (variant.family == "falcon") options.config.hidden_size = options.config.num_heads * variant.head_dim;
  options.dtype = variant.dtype;
  options.norm_dtype = variant.norm_dtype;
  return options;
}

inline std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  const char* const families[] = {"llama", "mistral", "qwen2", "qwen3", "opt", "qwen3_5"};
  const std::pair<const char*, DType> dtypes[] = {{"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}};
  for (const std::string family : families) {
    for (const auto& [dtype_name, dtype] : dtypes) {
      Variant variant{.name = family + "_" + dtype_name, .family = family, .dtype = dtype, .quantization = std::nullopt};
      if (family == "mistral") variant.window = 50;
      if (family == "opt") variant.activation = Activation::kRelu, variant.head_dim = 24;
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
  // Of these, what is special does not depend on the dtype.
  for (const std::string family : {"gemma3", "falcon", "qwen3_moe", "qwen3_next", "glm4_moe", "glm4_moe_lite", "gemma4", "gpt_oss"}) {
    variants.push_back({.name = family + "_bf16", .family = family, .quantization = std::nullopt});
    if (family == "gemma3" || family == "gemma4" || family == "gpt_oss") variants.back().window = 50;
  }
  variants.push_back({.name = "llama_relu", .quantization = std::nullopt, .activation = Activation::kRelu});
  return variants;
}

// For tests of what the engine does with blocks, whatever these compute: each family, each dtype and
// each number of bits once. While Soaking(), all of Variants(), whose bits bits_test and
// streaming_bits_test compare in every run.
inline std::vector<Variant> SpreadVariants() {
  constexpr std::string_view kLeftOut[] = {"mistral_f16",   "mistral_f32",   "qwen2_bf16",        "qwen2_f32",
                                           "qwen3_bf16",    "qwen3_f16",     "opt_bf16",          "opt_f32",
                                           "qwen3_5_f16",   "qwen3_5_f32",   "llama_q3_f16",      "llama_q4_f16",
                                           "llama_q6_bf16", "llama_q8_bf16", "llama_rope_linear", "llama_rope_llama3"};
  std::vector<Variant> variants = Variants();
  if (!Soaking())
    std::erase_if(variants, [&](const Variant& variant) { return std::ranges::find(kLeftOut, variant.name) != std::end(kLeftOut); });
  return variants;
}

// Models of which one process is enough. As Gemma 4 E2B: an embedding of each layer, and layers that use
// KV of others. With longrope, rows need the length of their sequence.
inline std::vector<Variant> OneProcessVariants() {
  return {{.name = "gemma4_e2b_bf16", .family = "gemma4", .quantization = std::nullopt, .window = 50, .dense = true},
          {.name = "phi3_longrope_bf16", .family = "phi3", .quantization = std::nullopt, .rope = RopeType::kLongRope}};
}

// Packed models: all group sizes and numbers of bits, spread over the families, and norms whose
// dtype differs from that of the scales.
inline std::vector<Variant> PackedVariants() {
  std::vector<Variant> variants = {
      {.name = "llama_q4_g32_f32", .family = "llama", .dtype = DType::kF32, .quantization = Quantization{4, 32}},
      {.name = "llama_q8_g128_bf16", .family = "llama", .dtype = DType::kBF16, .quantization = Quantization{8, 128}},
      {.name = "mistral_q4_g128_bf16", .family = "mistral", .dtype = DType::kBF16, .quantization = Quantization{4, 128}, .window = 50},
      {.name = "mistral_q3_g32_f16", .family = "mistral", .dtype = DType::kF16, .quantization = Quantization{3, 32}, .window = 50},
      {.name = "qwen2_q8_g32_bf16", .family = "qwen2", .dtype = DType::kBF16, .quantization = Quantization{8, 32}},
      {.name = "qwen2_q6_g128_f16", .family = "qwen2", .dtype = DType::kF16, .quantization = Quantization{6, 128}},
      {.name = "qwen3_q6_g32_bf16", .family = "qwen3", .dtype = DType::kBF16, .quantization = Quantization{6, 32}},
      {.name = "qwen3_q3_g128_f32", .family = "qwen3", .dtype = DType::kF32, .quantization = Quantization{3, 128}},
      {.name = "opt_q4_g64_bf16", .family = "opt", .dtype = DType::kBF16, .quantization = Quantization{4, 64}},
      {.name = "opt_q3_g128_f16", .family = "opt", .dtype = DType::kF16, .quantization = Quantization{3, 128}},
      {.name = "qwen3_5_q4_g32_bf16", .family = "qwen3_5", .dtype = DType::kBF16, .quantization = Quantization{4, 32}},
      {.name = "qwen3_5_q8_f16_norms_f32",
       .family = "qwen3_5",
       .dtype = DType::kF16,
       .quantization = Quantization{8, 64},
       .norm_dtype = DType::kF32},
      {.name = "qwen3_q4_f16_norms_f32",
       .family = "qwen3",
       .dtype = DType::kF16,
       .quantization = Quantization{4, 64},
       .norm_dtype = DType::kF32},
      {.name = "qwen3_moe_q4_g32_bf16", .family = "qwen3_moe", .dtype = DType::kBF16, .quantization = Quantization{4, 32}},
      {.name = "qwen3_5_moe_q6_g64_f32", .family = "qwen3_5_moe", .dtype = DType::kF32, .quantization = Quantization{6, 64}},
      {.name = "qwen3_fp8_bf16", .family = "qwen3", .dtype = DType::kBF16, .quantization = kFp8},
      {.name = "llama_fp8_rows_f16", .family = "llama", .dtype = DType::kF16, .quantization = kFp8Rows},
      {.name = "opt_q8_f16_norms_bf16",
       .family = "opt",
       .dtype = DType::kF16,
       .quantization = Quantization{8, 64},
       .norm_dtype = DType::kBF16},
  };
  for (Variant& variant : variants) {
    variant.head_dim = 32;  // the groups of 128 divide every matrix: none stays dense
    if (variant.family == "opt") variant.activation = Activation::kRelu;
  }
  return variants;
}

// Every second of them, with all group sizes and numbers of bits; while Soaking(), all.
inline std::vector<Variant> SpreadPackedVariants() {
  const std::vector<Variant> all = PackedVariants();
  std::vector<Variant> some;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % 2 == 1 || Soaking()) some.push_back(all[i]);
  }
  return some;
}

}  // namespace lime
