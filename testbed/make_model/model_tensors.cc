#include "testbed/make_model/model_tensors.h"

#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "absl/strings/strip.h"
#include "daemon/stores/float_codec.h"
#include "planner/base/check.h"
#include "planner/plan/model/model_spec.h"

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
  TensorLister(const ModelConfig& config, DType dtype, DType norm_dtype) : config_(config), dtype_(dtype), norm_dtype_(norm_dtype) {}

  // `spec` is of the dense model.
  std::vector<RandomTensor> List(const ModelSpec& spec) {
    for (const BlockSpec& block : spec.blocks) {
      for (const TensorSpec& tensor : Whole(spec, block)) {
        if (tensor.role == TensorRole::kOutput && config_.tie_embeddings) continue;
        Add(tensor);
      }
    }
    return std::move(tensors_);
  }

 private:
  // The tensors of a block, each instead of its slices. Matrices of all experts in one tensor are a
  // stack with the experts as first dimension.
  static std::vector<TensorSpec> Whole(const ModelSpec& spec, const BlockSpec& block) {
    std::vector<TensorSpec> whole;
    std::map<std::string_view, size_t> known;
    for (const TensorSpec& slice : block.tensors) {
      const auto [at, is_new] = known.emplace(slice.name, whole.size());
      if (is_new) {
        whole.push_back(slice);
      } else {
        whole[at->second].info.shape[0] += slice.info.shape[0];
      }
    }
    for (TensorSpec& tensor : whole) {
      if (NameApart(spec, block.id, tensor) == tensor.name) continue;
      const int64_t experts = spec.config.experts->count;
      tensor.info.shape[0] /= experts;
      tensor.info.shape.insert(tensor.info.shape.begin(), experts);
    }
    return whole;
  }

  void Add(const TensorSpec& tensor) {
    const std::vector<int64_t>& shape = tensor.info.shape;
    if (tensor.part == TensorPart::kBias) return AddNormal(tensor, DTypeOf(tensor.role), 0, kBiasDeviation);
    switch (tensor.role) {
      case TensorRole::kTokenEmbedding:
        return AddMatrix(tensor, kEmbeddingDeviation);
      case TensorRole::kPositionEmbedding:
        return AddNormal(tensor, dtype_, 0, kEmbeddingDeviation);
      case TensorRole::kKvUp:  // dense in packed models, too
        return AddNormal(tensor, dtype_, 0, 1 / std::sqrt(static_cast<float>(shape.back())));
      case TensorRole::kNorm:
      case TensorRole::kAfterNorm:
      case TensorRole::kMlpNorm:
      case TensorRole::kQNorm:
      case TensorRole::kKNorm:
      case TensorRole::kLayerScale:
      case TensorRole::kRouterNorm:
      case TensorRole::kExpertScale:
      case TensorRole::kSharedNorm:
      case TensorRole::kSharedAfterNorm:
      case TensorRole::kExpertsAfterNorm:
      case TensorRole::kQDownNorm:
      case TensorRole::kKvDownNorm:
        return AddNormal(tensor, norm_dtype_, 1 - static_cast<float>(config_.norm_offset), kNormDeviation);
      case TensorRole::kOutputNorm:
        return AddNormal(tensor, norm_dtype_, 1, kNormDeviation);
      case TensorRole::kConv:
        return AddNormal(tensor, dtype_, 0, 1 / std::sqrt(static_cast<float>(shape.back())));
      // A state that decays by about a tenth with each position.
      case TensorRole::kDecayLog:
        return AddNormal(tensor, norm_dtype_, 0.5f, 0.5f);
      case TensorRole::kDecayBias:
        return AddNormal(tensor, dtype_, -3, 0.5f);
      case TensorRole::kRouterCorrection:
        return AddNormal(tensor, norm_dtype_, 0, kNormDeviation);
      default:  // a row's dot product with a normalised vector is then around 1
        return AddMatrix(tensor, 1 / std::sqrt(static_cast<float>(shape.back())));
    }
  }

  // Of a bias.
  DType DTypeOf(TensorRole role) const { return role == TensorRole::kNorm || role == TensorRole::kMlpNorm ? norm_dtype_ : dtype_; }

  void AddNormal(const TensorSpec& tensor, DType dtype, float mean, float deviation) {
    tensors_.push_back(
        {.name = tensor.name, .dtype = dtype, .shape = tensor.info.shape, .stream = next_stream_++, .mean = mean, .deviation = deviation});
  }

  // Dense, or packed where the model is quantised and the groups divide the columns.
  void AddMatrix(const TensorSpec& tensor, float deviation) {
    const int64_t cols = tensor.info.shape.back();
    const auto with = [&](int64_t columns) {
      std::vector<int64_t> shape = tensor.info.shape;
      shape.back() = columns;
      return shape;
    };
    if (!config_.quantization || cols % config_.quantization->group_size != 0) return AddNormal(tensor, dtype_, 0, deviation);
    const std::string stem(absl::StripSuffix(tensor.name, ".weight"));
    const int bits = config_.quantization->bits, group_size = config_.quantization->group_size;
    const auto top = static_cast<float>((1 << bits) - 1);
    const float scale = 2 * std::sqrt(3.0f) * deviation / top;  // uniform codes then have this deviation
    const uint64_t words = next_stream_++, scales = next_stream_++;
    tensors_.push_back({.name = stem + ".weight",
                        .dtype = DType::kU32,
                        .shape = with(cols * bits / 32),
                        .kind = RandomTensor::Kind::kWords,
                        .stream = words});
    RandomTensor group{.name = stem + ".scales",
                       .dtype = dtype_,
                       .shape = with(cols / group_size),
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
  uint64_t next_stream_ = 0;
  std::vector<RandomTensor> tensors_;
};

}  // namespace

absl::StatusOr<std::vector<RandomTensor>> TensorsOf(const ModelConfig& config, DType dtype, std::optional<DType> norm_dtype) {
  ModelConfig dense = config;
  dense.quantization.reset();
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, ModelSpec::FromConfig(dense, dtype, "the model asked for"));
  return TensorLister(config, dtype, norm_dtype.value_or(dtype)).List(spec);
}

void FillRandom(const RandomTensor& tensor, uint64_t seed, int64_t first, std::span<std::byte> out) {
  LIME_CHECK_EQ(first % 2, 0);
  const uint64_t key = Mix(Mix(seed) + tensor.stream);
  if (tensor.kind == RandomTensor::Kind::kWords) return FillWords(key, first, out);
  if (tensor.dtype == DType::kF32) return FillLevels<uint32_t>(tensor, key, first, out);
  FillLevels<uint16_t>(tensor, key, first, out);
}

}  // namespace lime
