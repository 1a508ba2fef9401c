// A low-bit copy of a decider: the matrix whose products decide which neurons of a sparse MLP are
// zero (up of a plain MLP, gate of a gated one). proven_zeros.h proves zeros with it.
//
// The copy of a row w has
//   q          w in a few bits: code * scale. Codes are uniform; the scale has the least error |w - q|
//   kept       the error e = w - q along the layer's directions, e.U, in 8 bits
//   bounds     norms, and e.mean, rounded up
//
// Directions U and the mean are those of calibration inputs. Any finite ones keep the proof valid;
// they decide only how much is proven. U need not be orthonormal.
//
// Pure. A copy is made once, by the program that writes a store.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/proven_zeros/sum_order.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr int kLeastCopyBits = 2, kMostCopyBits = 8;
inline constexpr int64_t kMostDirections = 4096;
inline constexpr int64_t kMostCopyWeights = int64_t{1} << 32;

// Of the inputs of a layer.
struct InputFrame {
  std::vector<float> mean;        // [cols]
  std::vector<float> directions;  // [count, cols], row-major; may be empty
};

// Of one row; each is at least the exact number.
struct RowBounds {
  float weight = 0;        // |w|
  float copy = 0;          // |q|
  float error = 0;         // |w - q|
  float mean_product = 0;  // (w - q).mean, of either sign
  float kept = 0;          // |kept|
  float kept_error = 0;    // |(w - q) U - kept|
};

class DeciderCopy {
 public:
  struct Source {
    int64_t rows = 0, cols = 0;
    std::span<const float> weights;  // [rows, cols], row-major: exactly the values that the layer multiplies
    std::span<const float> bias;     // [rows], or empty
    SumOrder order = SumOrder::kPortable;
    int bits = kMostCopyBits;
  };

  // InvalidArgument for sizes outside their bounds, and for a weight, mean or direction that is not
  // finite: the layer then has no copy.
  static absl::StatusOr<DeciderCopy> Create(const Source& source, InputFrame frame);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t directions() const { return directions_; }
  SumOrder order() const { return order_; }
  const InputFrame& frame() const { return frame_; }
  double frame_norm() const { return frame_norm_; }  // Frobenius norm of the directions, or more
  double mean_norm() const { return mean_norm_; }    // or more

  // q of a row: codes(row)[k] * scale(row), which is exact in fp32 and not subnormal.
  std::span<const int8_t> codes(int64_t row) const { return Part(codes_, row, cols_); }
  float scale(int64_t row) const { return rows_of_[static_cast<size_t>(row)].scale; }
  std::span<const int8_t> kept(int64_t row) const { return Part(kept_, row, directions_); }
  float kept_scale(int64_t row) const { return rows_of_[static_cast<size_t>(row)].kept_scale; }
  float bias(int64_t row) const { return rows_of_[static_cast<size_t>(row)].bias; }
  const RowBounds& bounds(int64_t row) const { return rows_of_[static_cast<size_t>(row)].bounds; }

 private:
  struct Row {
    float scale = 0, kept_scale = 0, bias = 0;
    RowBounds bounds;
  };

  DeciderCopy(const Source& source, InputFrame frame);

  static std::span<const int8_t> Part(const std::vector<int8_t>& all, int64_t row, int64_t size) {
    return std::span(all).subspan(static_cast<size_t>(row * size), static_cast<size_t>(size));
  }
  void CopyRow(std::span<const float> weights, int bits, int64_t row);
  void KeepError(std::span<const double> error, int64_t row);

  int64_t rows_, cols_, directions_;
  SumOrder order_;
  InputFrame frame_;
  double frame_norm_ = 0, mean_norm_ = 0;
  std::vector<int8_t> codes_;  // [rows, cols]
  std::vector<int8_t> kept_;   // [rows, directions]
  std::vector<Row> rows_of_;
};

}  // namespace lime
