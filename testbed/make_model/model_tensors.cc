#include "testbed/make_model/model_tensors.h"

#include <array>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/stores/float_codec.h"
#include "planner/base/check.h"

namespace lime {
namespace {

constexpr int kLevels = 4 * 255 + 1;  // sums of four random bytes
constexpr float kEmbeddingDeviation = 0.5f;
constexpr float kBiasDeviation = 0.02f;
constexpr float kNormDeviation = 0.1f;

// Random bits from a counter (the finaliser of splitmix64).
uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Level `sum` as a value of about the standard normal distribution.
float Normal(int sum) {
  return static_cast<float>((sum - 510) / std::sqrt(4 * (256.0 * 256.0 - 1) / 12));
}

int SumOfBytes(uint32_t bits) {
  return static_cast<int>((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24));
}

// The value of every level in the tensor's dtype: drawing is then a look-up.
template <typename T>
std::array<T, kLevels> LevelTable(const RandomTensor& tensor) {
  std::array<T, kLevels> table;
  for (int level = 0; level < kLevels; ++level) {
    std::byte stored[sizeof(T)];
    StoreFloat(tensor.dtype, tensor.mean + tensor.deviation * Normal(level), stored);
    if (tensor.kind == RandomTensor::Kind::kGroupBiases) {
      StoreFloat(tensor.dtype, -0.5f * tensor.top_code * LoadFloat(tensor.dtype, stored), stored);
    }
    std::memcpy(&table[static_cast<size_t>(level)], stored, sizeof(T));
  }
  return table;
}

template <typename T>
void FillLevels(const RandomTensor& tensor, uint64_t key, int64_t first, std::span<std::byte> out) {
  const std::array<T, kLevels> table = LevelTable<T>(tensor);
  auto* values = reinterpret_cast<T*>(out.data());
  const size_t count = out.size() / sizeof(T);
  for (size_t i = 0; i < count; i += 2) {
    const uint64_t bits = Mix(key + static_cast<uint64_t>(first / 2) + i / 2);
    values[i] = table[static_cast<size_t>(SumOfBytes(static_cast<uint32_t>(bits)))];
    if (i + 1 < count) values[i + 1] = table[static_cast<size_t>(SumOfBytes(static_cast<uint32_t>(bits >> 32)))];
  }
}

void FillWords(uint64_t key, int64_t first, std::span<std::byte> out) {
  for (size_t i = 0; i * 4 < out.size(); i += 2) {
    const uint64_t bits = Mix(key + static_cast<uint64_t>(first / 2) + i / 2);
    std::memcpy(out.data() + i * 4, &bits, std::min<size_t>(8, out.size() - i * 4));
  }
}

// Lists a model's tensors block by block.
class TensorLister {
 public:
  TensorLister(const ModelConfig& config, DType dtype, DType norm_dtype)
      : config_(config), dtype_(dtype), norm_dtype_(norm_dtype), opt_(config.family == ModelFamily::kOpt) {}

  std::vector<RandomTensor> List() {
    const std::string prefix = opt_ ? "model.decoder." : "model.";
    AddMatrix(prefix + "embed_tokens", config_.vocab_size, config_.hidden_size, kEmbeddingDeviation);
    if (opt_) {
      AddNormal(prefix + "embed_positions.weight", {config_.max_positions + config_.position_offset, config_.hidden_size}, 0,
                kEmbeddingDeviation);
    }
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) AddLayer(absl::StrCat(prefix, "layers.", layer, "."));
    AddNorm(prefix + (opt_ ? "final_layer_norm" : "norm"), config_.hidden_size);
    if (!config_.tie_embeddings) AddLinear("lm_head", config_.vocab_size, config_.hidden_size, false);
    return std::move(tensors_);
  }

 private:
  void AddLayer(const std::string& base) {
    const int64_t hidden = config_.hidden_size, inner = config_.intermediate_size;
    const int64_t q_rows = config_.num_heads * config_.head_dim, kv_rows = config_.num_kv_heads * config_.head_dim;
    AddNorm(base + (opt_ ? "self_attn_layer_norm" : "input_layernorm"), hidden);
    AddLinear(base + "self_attn.q_proj", q_rows, hidden, config_.qkv_bias);
    AddLinear(base + "self_attn.k_proj", kv_rows, hidden, config_.qkv_bias);
    AddLinear(base + "self_attn.v_proj", kv_rows, hidden, config_.qkv_bias);
    if (config_.qk_norm) {
      AddNorm(base + "self_attn.q_norm", config_.head_dim);
      AddNorm(base + "self_attn.k_norm", config_.head_dim);
    }
    AddLinear(base + (opt_ ? "self_attn.out_proj" : "self_attn.o_proj"), hidden, q_rows, config_.attention_output_bias);
    AddNorm(base + (opt_ ? "final_layer_norm" : "post_attention_layernorm"), hidden);
    if (config_.gated_mlp()) AddLinear(base + "mlp.gate_proj", inner, hidden, config_.mlp_bias);
    AddLinear(base + (opt_ ? "fc1" : "mlp.up_proj"), inner, hidden, config_.mlp_bias);
    AddLinear(base + (opt_ ? "fc2" : "mlp.down_proj"), hidden, inner, config_.mlp_bias);
  }

  void AddNormal(const std::string& name, std::vector<int64_t> shape, float mean, float deviation) {
    tensors_.push_back(
        {.name = name, .dtype = dtype_, .shape = std::move(shape), .stream = next_stream_++, .mean = mean, .deviation = deviation});
  }

  // A norm's weight is around 1; OPT's LayerNorm also has a bias.
  void AddNorm(const std::string& stem, int64_t size) {
    AddNormal(stem + ".weight", {size}, 1, kNormDeviation);
    tensors_.back().dtype = norm_dtype_;
    if (!opt_) return;
    AddNormal(stem + ".bias", {size}, 0, kBiasDeviation);
    tensors_.back().dtype = norm_dtype_;
  }

  // 1 / sqrt(cols) keeps a row's dot product with a normalised vector around 1.
  void AddLinear(const std::string& stem, int64_t rows, int64_t cols, bool bias) {
    AddMatrix(stem, rows, cols, 1 / std::sqrt(static_cast<float>(cols)));
    if (bias) AddNormal(stem + ".bias", {rows}, 0, kBiasDeviation);
  }

  // Dense, or packed where the model is quantised and the groups divide the columns.
  void AddMatrix(const std::string& stem, int64_t rows, int64_t cols, float deviation) {
    if (!config_.quantization || cols % config_.quantization->group_size != 0)
      return AddNormal(stem + ".weight", {rows, cols}, 0, deviation);
    const auto [bits, group_size] = *config_.quantization;
    const auto top = static_cast<float>((1 << bits) - 1);
    const float scale = 2 * std::sqrt(3.0f) * deviation / top;  // uniform codes then have this deviation
    const uint64_t words = next_stream_++, scales = next_stream_++;
    tensors_.push_back({.name = stem + ".weight",
                        .dtype = DType::kU32,
                        .shape = {rows, cols * bits / 32},
                        .kind = RandomTensor::Kind::kWords,
                        .stream = words});
    RandomTensor group{.name = stem + ".scales",
                       .dtype = dtype_,
                       .shape = {rows, cols / group_size},
                       .stream = scales,
                       .mean = scale,
                       .deviation = 0.1f * scale};
    tensors_.push_back(group);
    group.name = stem + ".biases";
    group.kind = RandomTensor::Kind::kGroupBiases;
    group.top_code = top;
    tensors_.push_back(group);
  }

  const ModelConfig& config_;
  const DType dtype_, norm_dtype_;
  const bool opt_;
  uint64_t next_stream_ = 0;
  std::vector<RandomTensor> tensors_;
};

}  // namespace

ModelConfig CompleteConfig(const MakeModelOptions& options) {
  ModelConfig config = options.config;
  const bool opt = config.family == ModelFamily::kOpt;
  if (opt) config.num_kv_heads = config.num_heads;
  if (config.head_dim == 0 || opt) config.head_dim = config.hidden_size / std::max<int64_t>(1, config.num_heads);
  if (opt) {
    config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
    config.position_offset = 2;
    config.activation = Activation::kRelu;
    config.rope.type = RopeType::kNone;
  }
  if (config.family == ModelFamily::kQwen2) config.qkv_bias = true;
  if (config.family == ModelFamily::kQwen3) config.qk_norm = true;
  if (config.family == ModelFamily::kLlama && config.qkv_bias) config.attention_output_bias = true;
  return config;
}

std::vector<RandomTensor> TensorsOf(const ModelConfig& config, DType dtype, std::optional<DType> norm_dtype) {
  return TensorLister(config, dtype, norm_dtype.value_or(dtype)).List();
}

void FillRandom(const RandomTensor& tensor, uint64_t seed, int64_t first, std::span<std::byte> out) {
  LIME_CHECK_EQ(first % 2, 0);
  const uint64_t key = Mix(Mix(seed) + tensor.stream);
  if (tensor.kind == RandomTensor::Kind::kWords) return FillWords(key, first, out);
  if (tensor.dtype == DType::kF32) return FillLevels<uint32_t>(tensor, key, first, out);
  FillLevels<uint16_t>(tensor, key, first, out);
}

}  // namespace lime
