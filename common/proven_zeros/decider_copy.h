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
// Codes lie in blocks of 32 columns; columns behind the last one have the code 0. A code c of b bits
// is stored as c + 2^(b - 1). A block of 8 bits is 32 bytes. A block of fewer is
//   16 bytes       byte i has the low 4 bits of column i, and above them those of column i + 16
//   b - 4 words    little-endian; bit i of word j is bit 4 + j of column i
//
// Pure. A copy is made once, by the program that writes a store.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/proven_zeros/sum_order.h"
#include "planner/base/float_bits.h"
#include "planner/base/for_each.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr int kLeastCopyBits = 4, kMostCopyBits = 8;
inline constexpr int64_t kCodeBlock = 32;  // columns
inline constexpr int64_t kMostDirections = 4096;
inline constexpr int64_t kMostCopyWeights = int64_t{1} << 32;

// Bytes of the codes of a row.
constexpr int64_t CodeRowBytes(int64_t cols, int bits) {
  return (cols + kCodeBlock - 1) / kCodeBlock * kCodeBlock / 8 * bits;
}

// Of the inputs of a layer. Directions are used as bf16.
struct InputFrame {
  std::vector<float> mean;        // [cols]
  std::vector<float> directions;  // [count, cols], row-major; may be empty
};

// Of one row, as a store has it. Each bound is at least the exact number.
struct CopiedRow {
  float scale = 0;         // of q: a bf16 number, 0 or at least 2^-100
  float kept_scale = 0;    // of kept
  float weight = 0;        // |w|
  float copy = 0;          // |q|
  float error = 0;         // |w - q|
  float mean_product = 0;  // (w - q).mean, of either sign
  float kept = 0;          // |kept|
  float kept_error = 0;    // |(w - q) U - kept|
  float subnormal = 0;     // norm of the elements of w that kBf16Dot reads as zero

  friend bool operator==(const CopiedRow&, const CopiedRow&) = default;
};
inline constexpr int64_t kCopiedRowFloats = 9;
static_assert(sizeof(CopiedRow) == kCopiedRowFloats * sizeof(float));

// A copy, wherever its memory is. The memory outlives the view.
struct DeciderView {
  int64_t rows = 0, cols = 0, directions = 0;
  int bits = 0;
  const uint8_t* codes = nullptr;       // [rows][CodeRowBytes]
  const int8_t* kept = nullptr;         // [rows, directions]
  const CopiedRow* of_rows = nullptr;   // [rows]
  const float* mean = nullptr;          // [cols]
  const BF16* axes = nullptr;           // [directions, cols]: U
  double mean_norm = 0, axes_norm = 0;  // |mean|, and the Frobenius norm of U, or more

  const uint8_t* CodesOf(int64_t row) const { return codes + row * CodeRowBytes(cols, bits); }
  // q of a row: CodeAt * scale, which is exact in fp32 and not subnormal.
  int CodeAt(int64_t row, int64_t col) const;
};

// Fills mean_norm and axes_norm.
void MeasureFrame(DeciderView& view);

class DeciderCopy {
 public:
  struct Source {
    int64_t rows = 0, cols = 0;
    std::span<const float> weights;  // [rows, cols], row-major: exactly the values that the layer multiplies
    int bits = kMostCopyBits;
    ForEach for_each = InTurn;
  };

  // InvalidArgument for sizes outside their bounds, and for a weight, mean or direction that is not
  // finite: the layer then has no copy.
  static absl::StatusOr<DeciderCopy> Create(const Source& source, const InputFrame& frame);

  // The copy, in the memory of this object.
  DeciderView view() const;

 private:
  DeciderCopy(const Source& source, const InputFrame& frame);

  int64_t rows_, cols_, directions_;
  int bits_;
  std::vector<float> mean_;
  std::vector<BF16> axes_;
  std::vector<uint8_t> codes_;
  std::vector<int8_t> kept_;
  std::vector<CopiedRow> of_rows_;
  double mean_norm_ = 0, axes_norm_ = 0;
};

// Copies single rows, for whoever has not all of them in memory at once.
class RowCopier {
 public:
  // InvalidArgument for sizes outside their bounds, and numbers of the frame that are not finite.
  static absl::StatusOr<RowCopier> Create(int64_t cols, int bits, const InputFrame& frame);

  int64_t cols() const { return std::ssize(mean_); }
  int64_t directions() const { return std::ssize(axes_) / cols(); }
  int bits() const { return bits_; }
  std::span<const float> mean() const { return mean_; }
  std::span<const BF16> axes() const { return axes_; }

  // `weights`: [cols]. `codes`: CodeRowBytes, and `kept`: [directions], both of this row. False if a
  // weight is not finite: then the row has no copy.  Thread: any
  bool Copy(std::span<const float> weights, std::span<uint8_t> codes, std::span<int8_t> kept, CopiedRow& row) const;

 private:
  RowCopier(int bits, const InputFrame& frame);
  void KeepError(std::span<const double> error, std::span<int8_t> kept_codes, CopiedRow& row) const;

  int bits_;
  std::vector<float> mean_;
  std::vector<BF16> axes_;
  std::vector<BF16> columns_;  // the same, [cols, directions]
  double mean_norm_ = 0, axes_norm_ = 0;
};

}  // namespace lime
