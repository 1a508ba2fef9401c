#include "testbed/make_model/model_tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/strip.h"
#include "daemon/stores/float_codec.h"
#include "planner/base/check.h"
#include "planner/base/small_floats.h"
#include "planner/plan/model/family.h"
#include "planner/plan/model/model_spec.h"
#include "testbed/make_model/draws.h"
#include "testbed/make_model/planted_neurons.h"
#include "testbed/make_model/planted_routes.h"

namespace lime {
namespace {

constexpr float kEmbeddingDeviation = 0.5f;
constexpr float kBiasDeviation = 0.02f;
constexpr float kNormDeviation = 0.1f;
constexpr float kFp8Deviation = 128;     // of the codes' values: 3.4 times as much is below 448, the largest
constexpr float kFp4Deviation = 2.926f;  // of the 16 values of fp4, which are equally likely

// The code of the nearest value of FP8. Codes below 0x7f, which is NaN, have ascending values.
uint8_t NearestFp8(float value) {
  const float magnitude = std::min(std::abs(value), Fp8Value(0x7e));
  uint8_t code = 0;
  while (Fp8Value(code) < magnitude) ++code;
  if (code > 0 && magnitude - Fp8Value(static_cast<uint8_t>(code - 1)) < Fp8Value(code) - magnitude) --code;
  return static_cast<uint8_t>(value < 0 ? code | 0x80 : code);
}

// Stores a value in a working dtype, as FP8, or as an integer of 8 bits.
void StoreValue(DType dtype, float value, std::byte* at) {
  if (dtype == DType::kF8E4M3) {
    *at = std::byte{NearestFp8(value)};
  } else if (dtype == DType::kU8) {
    *at = std::byte{static_cast<uint8_t>(std::clamp(std::lround(value), 0l, 254l))};
  } else {
    StoreFloat(dtype, value, at);
  }
}

float RoundedTo(DType dtype, float value) {
  std::byte stored[sizeof(float)];
  StoreFloat(dtype, value, stored);
  return LoadFloat(dtype, stored);
}

// The value of every level in the tensor's dtype: drawing is then a look-up.
template <typename T>
std::array<T, kLevels> LevelTable(const RandomTensor& tensor) {
  std::array<T, kLevels> table;
  for (int level = 0; level < kLevels; ++level) {
    std::byte stored[sizeof(T)];
    float value = tensor.mean + tensor.deviation * Normal(level);
    if (tensor.rounded) value = RoundedTo(*tensor.rounded, value);
    if (tensor.kind == RandomTensor::Kind::kGroupBiases) value = -0.5f * tensor.top_code * RoundedTo(tensor.dtype, value);
    StoreValue(tensor.dtype, value, stored);
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

// A scale of FP8 has the 8 bits of bf16 at most, so that its products with codes are exact in F32.
RandomTensor ScalesOf(const RandomTensor::Scales& scales) {
  return {.dtype = scales.dtype, .stream = scales.stream, .mean = scales.mean, .deviation = scales.deviation, .rounded = DType::kBF16};
}

// The value of every level of the scales.
std::array<float, kLevels> ScaleTable(const RandomTensor::Scales& scales) {
  std::array<float, kLevels> table;
  for (int level = 0; level < kLevels; ++level)
    table[static_cast<size_t>(level)] = RoundedTo(scales.dtype, RoundedTo(DType::kBF16, scales.mean + scales.deviation * Normal(level)));
  return table;
}

void FillProducts(const RandomTensor& tensor, uint64_t seed, int64_t first, std::span<std::byte> out) {
  RandomTensor codes = tensor;
  codes.dtype = DType::kF8E4M3;
  const auto code_of = LevelTable<uint8_t>(codes);
  const auto scale_of = ScaleTable(tensor.scales);
  const uint64_t key = KeyOf(seed, tensor.stream), scales_key = KeyOf(seed, tensor.scales.stream);
  const int64_t cols = tensor.shape.back(), rows = tensor.shape[tensor.shape.size() - 2];
  const auto blocks = [](int64_t size, int64_t block) { return (size + block - 1) / block; };
  const int64_t col_blocks = blocks(cols, tensor.scales.block_cols), row_blocks = blocks(rows, tensor.scales.block_rows);
  for (int64_t i = first; i < first + std::ssize(out) / 4; ++i) {
    const int64_t row = i / cols % rows, matrix = i / cols / rows;
    const int64_t at = (matrix * row_blocks + row / tensor.scales.block_rows) * col_blocks + i % cols / tensor.scales.block_cols;
    const float product = Fp8Value(code_of[LevelOf(key, i)]) * scale_of[LevelOf(scales_key, at)];
    std::memcpy(out.data() + (i - first) * 4, &product, 4);
  }
}

constexpr uint64_t kTopicsStream = UINT64_MAX;  // no tensor's own

void FillTopics(const RandomTensor& tensor, uint64_t seed, int64_t first, std::span<std::byte> out) {
  const std::array<float, kLevels> normal = NormalTable();
  const uint64_t key = KeyOf(seed, tensor.stream), topics_key = KeyOf(seed, kTopicsStream);
  const int64_t cols = tensor.shape.back(), size = ElementBytes(tensor.dtype);
  for (int64_t i = first; i < first + std::ssize(out) / size; ++i) {
    const int64_t in_topic = i / cols % kPlantedTopics * cols + i % cols;
    float value = tensor.deviation * normal[LevelOf(key, i)] + tensor.shared_deviation * normal[LevelOf(topics_key, in_topic)];
    if (tensor.rounded) value = RoundedTo(*tensor.rounded, value);
    StoreValue(tensor.dtype, value, out.data() + (i - first) * size);
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
  TensorLister(const ModelConfig& config, const StoredForm& form) : config_(config), form_(form) {}

  std::vector<RandomTensor> List(const ModelSpec& spec) {
    for (const BlockSpec& block : spec.blocks) {
      if (form_.planted_neurons && block.id.kind == BlockKind::kAttention) planted_ = PlantedLayerOf(config_, block.id.layer);
      const TensorSpec* previous = nullptr;
      for (const TensorSpec& tensor : Whole(block)) {
        if (tensor.role == TensorRole::kOutput && config_.tie_embeddings) continue;
        Add(tensor, previous);
        previous = &tensor;
      }
    }
    return std::move(tensors_);
  }

 private:
  // The tensors of a block, each instead of its slices. Matrices of all experts in one tensor are a
  // stack with the experts as first dimension.
  std::vector<TensorSpec> Whole(const BlockSpec& block) const {
    std::vector<TensorSpec> whole;
    std::map<std::string_view, size_t> known;
    for (const TensorSpec& slice : block.tensors) {
      const auto [at, is_new] = known.emplace(slice.name, whole.size());
      if (is_new) {
        whole.push_back(slice);
      } else if (slice.offset > 0) {  // else it is the one scale of a matrix
        whole[at->second].info.shape[0] += slice.info.shape[0];
      }
    }
    for (TensorSpec& tensor : whole) {
      if (tensor.expert < 0 || !FamilyOf(config_.model_type).stacks_experts) continue;
      const int64_t experts = config_.experts->count;
      tensor.info.shape[0] /= experts;
      tensor.info.shape.insert(tensor.info.shape.begin(), experts);
    }
    return whole;
  }

  // `previous`: the tensor before it in the block.
  void Add(const TensorSpec& tensor, const TensorSpec* previous) {
    if (form_.planted_neurons && AddPlanted(tensor)) return;
    switch (tensor.part) {
      case TensorPart::kWeight:
        return AddWeight(tensor);
      case TensorPart::kBias:
        return AddNormal(tensor, DTypeOf(tensor.role), 0, kBiasDeviation);
      case TensorPart::kScales:
        return tensor.info.dtype == DType::kU8 ? AddExponents(tensor) : AddGroupScales(tensor);
      case TensorPart::kGroupBiases:
        return AddGroupBiases(tensor);
      case TensorPart::kPinnedScales:
        return AddFp8Scales(tensor, *previous);
    }
  }

  // Of a model with planted neurons. False for a tensor that is as in others.
  bool AddPlanted(const TensorSpec& tensor) {
    const bool is_bias = tensor.part == TensorPart::kBias;
    switch (tensor.role) {
      case TensorRole::kTokenEmbedding:
        return AddRows(tensor, PlantedTokens(config_)), true;
      case TensorRole::kPositionEmbedding:
        return AddRows(tensor, PlantedPositions(config_)), true;
      case TensorRole::kNorm:
        return AddNormal(tensor, form_.norm_dtype.value_or(form_.dtype), is_bias ? 0 : 1, 0), true;
      case TensorRole::kUp:
        if (is_bias) return AddNormal(tensor, form_.dtype, -planted_.threshold, planted_.bias_deviation), true;
        return AddRows(tensor, PlantedFirst(config_)), true;
      case TensorRole::kO:
        return AddNormal(tensor, form_.dtype, 0, is_bias ? 0 : planted_.out_deviation), true;
      case TensorRole::kDown:
        return AddNormal(tensor, form_.dtype, 0, is_bias ? 0 : planted_.down_deviation), true;
      default:
        return false;
    }
  }

  void AddRows(const TensorSpec& tensor, const PlantedMatrix& rows) {
    AddNormal(tensor, form_.dtype, 0, 0);
    tensors_.back().kind = RandomTensor::Kind::kPlanted;
    tensors_.back().planted = rows;
    ++next_stream_;  // of the coordinates
  }

  void AddWeight(const TensorSpec& tensor) {
    const std::vector<int64_t>& shape = tensor.info.shape;
    const DType norm_dtype = form_.norm_dtype.value_or(form_.dtype);
    switch (tensor.role) {
      case TensorRole::kTokenEmbedding:
        return form_.planted_routes ? AddTopics(tensor, PlantedEmbedding()) : AddMatrix(tensor, kEmbeddingDeviation);
      case TensorRole::kPositionEmbedding:
      case TensorRole::kLayerEmbedding:
        return AddNormal(tensor, form_.dtype, 0, kEmbeddingDeviation);
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
      case TensorRole::kLayerInputNorm:
      case TensorRole::kLayerAfterNorm:
        return AddNormal(tensor, norm_dtype, 1 - static_cast<float>(config_.norm_offset), kNormDeviation);
      case TensorRole::kOutputNorm:
        return AddNormal(tensor, norm_dtype, 1, kNormDeviation);
      case TensorRole::kConv:
        return AddNormal(tensor, form_.dtype, 0, 1 / std::sqrt(static_cast<float>(shape.back())));
      // A state that decays by about a tenth with each position.
      case TensorRole::kDecayLog:
        return AddNormal(tensor, norm_dtype, 0.5f, 0.5f);
      case TensorRole::kDecayBias:
        return AddNormal(tensor, form_.dtype, -3, 0.5f);
      case TensorRole::kRouterCorrection:
        return AddNormal(tensor, norm_dtype, 0, kNormDeviation);
      case TensorRole::kSinks:  // scores are around 1, too
        return AddNormal(tensor, form_.dtype, 0, 1);
      case TensorRole::kOutput:
        if (form_.planted_routes) return AddTopics(tensor, PlantedHead(config_.hidden_size));
        [[fallthrough]];
      default:  // a row's dot product with a normalised vector is then around 1
        return AddMatrix(tensor, 1 / std::sqrt(static_cast<float>(ColsOf(tensor.info))));
    }
  }

  // Of a matrix, packed or not.
  int64_t ColsOf(const TensorInfo& info) const {
    const int64_t stored = info.shape.back();
    if (info.dtype == DType::kU8) return stored * 2;
    return info.dtype == DType::kU32 ? stored * 32 / config_.quantization->bits : stored;
  }

  // Of a bias.
  DType DTypeOf(TensorRole role) const {
    const bool of_norm = role == TensorRole::kNorm || role == TensorRole::kMlpNorm;
    return of_norm ? form_.norm_dtype.value_or(form_.dtype) : form_.dtype;
  }

  void AddNormal(const TensorSpec& tensor, DType dtype, float mean, float deviation) {
    RandomTensor normal{
        .name = tensor.name, .dtype = dtype, .shape = tensor.info.shape, .stream = next_stream_++, .mean = mean, .deviation = deviation};
    if (form_.widened) normal.rounded = std::exchange(normal.dtype, DType::kF32);
    tensors_.push_back(std::move(normal));
  }

  // REQUIRES: the tensor is not packed.
  void AddTopics(const TensorSpec& tensor, const PlantedRows& rows) {
    AddNormal(tensor, form_.dtype, 0, rows.own);
    tensors_.back().kind = RandomTensor::Kind::kTopics;
    tensors_.back().shared_deviation = rows.shared;
  }

  // A matrix, in the format that `tensor` has. Its values have this deviation.
  void AddMatrix(const TensorSpec& tensor, float deviation) {
    if (IsWorkingDType(tensor.info.dtype)) return AddNormal(tensor, form_.dtype, 0, deviation);
    deviation_ = deviation;
    RandomTensor codes{.name = tensor.name,
                       .dtype = tensor.info.dtype,
                       .shape = tensor.info.shape,
                       .kind = RandomTensor::Kind::kWords,
                       .stream = next_stream_++};
    if (codes.name.ends_with("_blocks")) {  // of mxfp4: 16 bytes each
      codes.shape.back() /= kMxfp4.group_size / 2;
      codes.shape.push_back(kMxfp4.group_size / 2);
    }
    if (codes.dtype == DType::kF8E4M3) codes.kind = RandomTensor::Kind::kNormal, codes.deviation = kFp8Deviation;
    tensors_.push_back(std::move(codes));
  }

  // Of affine groups. Codes are uniform; they then have the deviation of the matrix.
  void AddGroupScales(const TensorSpec& tensor) {
    const float scale = 2 * std::sqrt(3.0f) * deviation_ / TopCode();
    AddNormal(tensor, form_.dtype, scale, 0.1f * scale);
  }

  void AddGroupBiases(const TensorSpec& tensor) {
    RandomTensor biases = tensors_.back();  // the scales
    biases.name = tensor.name;
    biases.kind = RandomTensor::Kind::kGroupBiases;
    biases.top_code = TopCode();
    tensors_.push_back(std::move(biases));
  }

  float TopCode() const { return static_cast<float>((1 << config_.quantization->bits) - 1); }

  // Of mxfp4.
  void AddExponents(const TensorSpec& tensor) { AddNormal(tensor, DType::kU8, 127 + std::log2(deviation_ / kFp4Deviation), 0.5f); }

  // In the widened form, the scales of the last tensor.
  void AddFp8Scales(const TensorSpec& tensor, const TensorSpec& weight) {
    const float scale = deviation_ / kFp8Deviation;
    const RandomTensor::Scales scales{.stream = next_stream_++, .dtype = tensor.info.dtype, .mean = scale, .deviation = 0.1f * scale};
    if (!form_.widened) {
      RandomTensor stored = ScalesOf(scales);
      stored.name = tensor.name, stored.shape = tensor.info.shape;
      return tensors_.push_back(std::move(stored));
    }
    const int64_t rows = weight.info.shape[weight.info.shape.size() - 2], cols = weight.info.shape.back();
    const bool of_blocks = config_.quantization->scales == ScaleShape::kBlocks;
    const bool of_matrix = tensor.info.shape.size() == 1;
    RandomTensor& products = tensors_.back();
    products.dtype = DType::kF32;
    products.kind = RandomTensor::Kind::kProducts;
    products.scales = scales;
    products.scales.block_rows = of_blocks ? kFp8Block : of_matrix ? rows : 1;
    products.scales.block_cols = of_blocks ? kFp8Block : cols;
  }

  const ModelConfig& config_;
  const StoredForm form_;
  uint64_t next_stream_ = 0;
  float deviation_ = 0;   // of the last packed matrix
  PlantedLayer planted_;  // of the layer whose tensors are listed
  std::vector<RandomTensor> tensors_;
};

// MLX leaves a matrix dense if the groups do not divide its columns. Other methods have no such rule.
absl::Status LeaveDense(ModelConfig& config, DType dtype) {
  ModelConfig dense = config;
  dense.quantization.reset();
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, ModelSpec::FromConfig(dense, dtype, "the model asked for"));
  const std::string prefix(FamilyOf(config.model_type).prefixes.front());
  for (const BlockSpec& block : spec.blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      if (tensor.info.shape.back() % config.quantization->group_size == 0) continue;
      const std::string stem(absl::StripSuffix(tensor.name, ".weight"));
      config.quantization_of[stem.starts_with(prefix) ? stem : prefix + stem] = std::nullopt;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<RandomTensor>> TensorsOf(const ModelConfig& config, const StoredForm& form) {
  ModelConfig packed = config;
  if (packed.quantization && packed.quantization_method.empty()) LIME_RETURN_IF_ERROR(LeaveDense(packed, form.dtype));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, ModelSpec::FromConfig(packed, form.dtype, "the model asked for"));
  return TensorLister(config, form).List(spec);
}

void FillRandom(const RandomTensor& tensor, uint64_t seed, int64_t first, std::span<std::byte> out) {
  LIME_CHECK_EQ(first % 2, 0);
  const uint64_t key = KeyOf(seed, tensor.stream);
  if (tensor.kind == RandomTensor::Kind::kWords) return FillWords(key, first * ElementBytes(tensor.dtype) / 4, out);
  if (tensor.kind == RandomTensor::Kind::kProducts) return FillProducts(tensor, seed, first, out);
  if (tensor.kind == RandomTensor::Kind::kTopics) return FillTopics(tensor, seed, first, out);
  if (tensor.kind == RandomTensor::Kind::kPlanted) {
    return FillPlanted(tensor.planted, tensor.shape.back(), tensor.dtype, key, KeyOf(seed, tensor.stream + 1), first, out);
  }
  switch (ElementBytes(tensor.dtype)) {
    case 1:
      return FillLevels<uint8_t>(tensor, key, first, out);
    case 2:
      return FillLevels<uint16_t>(tensor, key, first, out);
    default:
      return FillLevels<uint32_t>(tensor, key, first, out);
  }
}

}  // namespace lime
