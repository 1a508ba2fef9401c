#include "kernels/cpu_backend/block_binder.h"

#include <optional>

#include "planner/base/check.h"
#include "planner/base/float_bits.h"

namespace lime::cpu {

namespace {

// Describes a matrix by its weights and scales. REQUIRES: the rest of `matrix` is set
void SetFormat(const TensorInfo& weight, const TensorInfo& scales, Matrix& matrix) {
  const absl::StatusOr<Quantization> format = PackingOf(weight, scales, matrix.cols);
  LIME_CHECK(format.ok()) << format.status().message();
  if (format->code == WeightCode::kMxfp4) matrix.dtype = DType::kU8;  // MLX stores them in words
  matrix.bits = format->bits;
  matrix.group_size = format->group_size;
  matrix.scale_dtype = scales.dtype;
  if (format->code != WeightCode::kFp8) return;
  const ScaleShape shape = format->scales;
  matrix.scale_rows = shape == ScaleShape::kBlocks ? kFp8Block : shape == ScaleShape::kRows ? 1 : matrix.rows;
  matrix.scale_cols = shape == ScaleShape::kBlocks ? scales.shape.back() : 1;
}

}  // namespace

const std::byte* BlockBinder::Data(TensorRole role, TensorPart part, int32_t expert) const {
  const std::optional<size_t> i = spec_.Find(role, part, expert);
  return i ? weights_.tensors[*i] : nullptr;
}

LinearLayer BlockBinder::Linear(TensorRole role, int64_t cols, int32_t expert) const {
  const std::optional<size_t> weight = spec_.Find(role, TensorPart::kWeight, expert);
  if (!weight) return {};
  const TensorInfo& info = spec_.tensors[*weight].info;
  LinearLayer layer{.weight = {.rows = info.shape[0], .cols = cols, .dtype = info.dtype, .data = Data(role, TensorPart::kWeight, expert)},
                    .bias = Data(role, TensorPart::kBias, expert),
                    .outputs = info.shape[0]};
  for (const TensorPart part : {TensorPart::kScales, TensorPart::kPinnedScales}) {
    const std::optional<size_t> i = spec_.Find(role, part, expert);
    if (!i) continue;
    SetFormat(info, spec_.tensors[*i].info, layer.weight);
    layer.weight.scales = Data(role, part, expert);
    layer.weight.biases = Data(role, TensorPart::kGroupBiases, expert);
  }
  return layer;
}

Norm BlockBinder::ReadNorm(const ModelConfig& config, TensorRole role) const {
  return {.weight = Data(role),
          .bias = Data(role, TensorPart::kBias),
          .dtype = DTypeOf(role),
          .eps = static_cast<float>(config.norm_eps),
          .weight_offset = static_cast<float>(config.norm_offset),
          .centred = config.norm == NormKind::kLayer};
}

float BlockBinder::Number(TensorRole role) const {
  const Values values = Small(role);
  float number = 1;
  if (values.data == nullptr) return number;
  WithWorkingType(values.dtype, [&](auto type) { number = ToFloat(static_cast<const decltype(type)*>(values.data)[0]); });
  return number;
}

DType BlockBinder::DTypeOf(TensorRole role) const {
  const std::optional<size_t> i = spec_.Find(role, TensorPart::kWeight);
  return i ? spec_.tensors[*i].info.dtype : DType::kF32;
}

}  // namespace lime::cpu
