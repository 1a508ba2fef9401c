#include "planner/plan/model/matrix_format.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/base/strings.h"
#include "planner/plan/model/model_spec.h"

namespace lime {
namespace {

absl::StatusOr<Quantization> AffineOf(const TensorInfo& weight, const TensorInfo& scales, int64_t cols) {
  const int64_t words = weight.shape.back(), groups = scales.shape.back();
  for (const int bits : {3, 4, 6, 8}) {
    for (const int group_size : {32, 64, 128}) {
      if (groups * group_size == cols && words * 32 == cols * bits) return Quantization{.bits = bits, .group_size = group_size};
    }
  }
  return Invalid("has ", words, " words and ", groups, " groups for ", cols,
                 " columns; 3, 4, 6 or 8 bits in groups of 32, 64 or 128 are supported");
}

absl::StatusOr<Quantization> Mxfp4Of(const TensorInfo& weight, const TensorInfo& scales, int64_t cols) {
  const int64_t bytes = weight.shape.back() * ElementBytes(weight.dtype), groups = scales.shape.back();
  if (bytes * 2 == cols && groups * kMxfp4.group_size == cols) return kMxfp4;
  return Invalid("has ", bytes, " bytes and ", groups, " groups in a row of ", cols, " columns; mxfp4 in groups of 32 is supported");
}

absl::StatusOr<Quantization> Fp8Of(const TensorInfo& weight, const TensorInfo& scales, int64_t cols) {
  const int64_t rows = weight.shape.front(), row_blocks = (rows + kFp8Block - 1) / kFp8Block,
                col_blocks = (cols + kFp8Block - 1) / kFp8Block;
  if (!IsWorkingDType(scales.dtype)) return Invalid("has scales of ", Text(DTypeName(scales.dtype)), "; F32, BF16 and F16 are supported");
  if (cols % kFp8Columns != 0) return Invalid("has ", cols, " columns; FP8 with a multiple of 32 columns is supported");
  Quantization format = kFp8;
  if (scales.shape.empty() || scales.shape == std::vector<int64_t>{1}) {
    format.scales = ScaleShape::kMatrix;
  } else if (scales.shape == std::vector<int64_t>{rows, 1}) {
    format.scales = ScaleShape::kRows;
  } else if (scales.shape != std::vector<int64_t>{row_blocks, col_blocks}) {
    return Invalid("has scales of shape [", absl::StrJoin(scales.shape, ", "), "] for ", rows, " rows and ", cols,
                   " columns; scales of blocks of 128 x 128, of rows or of the whole matrix are supported");
  }
  return format;
}

}  // namespace

absl::StatusOr<Quantization> PackingOf(const TensorInfo& weight, const TensorInfo& scales, int64_t cols) {
  if (weight.dtype == DType::kF8E4M3) return Fp8Of(weight, scales, cols);
  if (scales.dtype == DType::kU8 && (weight.dtype == DType::kU32 || weight.dtype == DType::kU8)) return Mxfp4Of(weight, scales, cols);
  if (weight.dtype != DType::kU32) return Invalid("is ", Text(DTypeName(weight.dtype)), " beside scales; packed weights are U32");
  return AffineOf(weight, scales, cols);
}

}  // namespace lime
