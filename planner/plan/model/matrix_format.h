// How the weights of a matrix are stored if they are not dense.
#pragma once

#include <cstdint>

#include "planner/base/status.h"

namespace lime {

// The code of one weight.
enum class WeightCode : uint8_t {
  kAffine,  // MLX: scale * q + bias
  kMxfp4,   // 2^(scale - 127) * fp4 (planner/base/small_floats.h)
  kFp8,     // scale * fp8
};

// Which weights of a matrix share a scale.
enum class ScaleShape : uint8_t {
  kGroups,  // group_size weights of a row
  kBlocks,  // FP8: 128 rows and 128 columns; at the ends, what is left of them
  kRows,    // FP8: a row
  kMatrix,  // FP8: all
};

struct Quantization {
  int bits = 0;        // affine: 3, 4, 6 or 8; mxfp4: 4; fp8: 8
  int group_size = 0;  // affine: 32, 64 or 128; mxfp4: 32; fp8: 128, by which its sums are cut
  WeightCode code = WeightCode::kAffine;
  ScaleShape scales = ScaleShape::kGroups;

  friend bool operator==(const Quantization&, const Quantization&) = default;
};

inline constexpr Quantization kMxfp4 = {.bits = 4, .group_size = 32, .code = WeightCode::kMxfp4};
inline constexpr Quantization kFp8 = {.bits = 8, .group_size = 128, .code = WeightCode::kFp8, .scales = ScaleShape::kBlocks};

// Rows and columns of a block of FP8.
inline constexpr int64_t kFp8Block = 128;
// FP8 weights have a multiple of this many columns.
inline constexpr int64_t kFp8Columns = 32;

struct TensorInfo;  // model_spec.h

// The format of a matrix with `cols` columns, derived from the dtypes and shapes of its weights and
// scales. Matrices of one checkpoint may differ. An error says how the weights are not supported:
// "is I32 beside scales; ...".
//
//   affine: weight U32 [rows, cols * bits / 32], scales of a working dtype [rows, cols / group_size]
//   mxfp4:  weight U32 [rows, cols / 8] or U8 [rows, cols / 2], scales U8 [rows, cols / 32]
//   FP8:    weight F8_E4M3 [rows, cols], scales of a working dtype: [rows / 128, cols / 128], both
//           rounded up, [rows, 1], [1] or []
absl::StatusOr<Quantization> PackingOf(const TensorInfo& weight, const TensorInfo& scales, int64_t cols);

}  // namespace lime
