#include "kernels/cpu_backend/block_binder.h"

#include <optional>

#include "planner/base/check.h"

namespace lime::cpu {

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
  if (const std::optional<size_t> i = spec_.Find(role, TensorPart::kScales, expert)) {
    const TensorInfo& scales = spec_.tensors[*i].info;
    const absl::StatusOr<Quantization> packing = PackingOf(info, scales, cols);
    LIME_CHECK(packing.ok()) << packing.status().message();
    layer.weight.bits = packing->bits;
    layer.weight.group_size = packing->group_size;
    layer.weight.scale_dtype = scales.dtype;
    layer.weight.scales = Data(role, TensorPart::kScales, expert);
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

DType BlockBinder::DTypeOf(TensorRole role) const {
  const std::optional<size_t> i = spec_.Find(role, TensorPart::kWeight);
  return i ? spec_.tensors[*i].info.dtype : DType::kF32;
}

}  // namespace lime::cpu
