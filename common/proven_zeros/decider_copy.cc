#include "common/proven_zeros/decider_copy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "common/proven_zeros/rounded_up.h"

namespace lime {
namespace {

// Smaller scales are 0, so that no q is subnormal, and no order reads it as zero.
constexpr float kLeastScale = 0x1p-100f;
constexpr int kScales = 16;  // that are tried for a row

bool AreFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

float LargestOf(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// A bf16 number: with codes of 8 bits, every code * scale is exact in fp32. Towards zero, so that it
// stays finite.
float ShortScale(double scale) {
  const float cut = std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(scale)) & 0xffff0000u);
  return cut < kLeastScale ? 0.0f : cut;
}

int8_t CodeOf(double value, float scale, int most) {
  if (scale == 0) return 0;
  return static_cast<int8_t>(std::lround(std::clamp<double>(value / static_cast<double>(scale), -most, most)));
}

double SquaredError(std::span<const float> weights, float scale, int most) {
  double sum = 0;
  for (const float weight : weights) {
    const double error = static_cast<double>(weight) - CodeOf(weight, scale, most) * static_cast<double>(scale);
    sum += error * error;
  }
  return sum;
}

// Clips the largest weights if the others gain more.
float BestScale(std::span<const float> weights, int most) {
  const double widest = static_cast<double>(LargestOf(weights)) / most;
  float best = 0;
  double least = SquaredError(weights, 0, most);
  for (int i = 0; i < kScales; ++i) {
    const float scale = ShortScale(widest * (kScales + i + 1) / (2 * kScales));  // from about half of it
    const double error = SquaredError(weights, scale, most);
    if (error < least) best = scale, least = error;
  }
  return best;
}

absl::Status CheckSource(const DeciderCopy::Source& source, const InputFrame& frame) {
  const int64_t rows = source.rows, cols = source.cols;
  if (cols < 1 || cols > kMostProvenCols) return Invalid("copy of a decider: ", cols, " columns, need 1 to ", kMostProvenCols);
  if (rows < 1 || rows > kMostCopyWeights / cols)
    return Invalid("copy of a decider: ", rows, " rows of ", cols, " columns, need 1 row and at most ", kMostCopyWeights, " weights");
  if (std::ssize(source.weights) != rows * cols || (!source.bias.empty() && std::ssize(source.bias) != rows))
    return Invalid("copy of a decider: ", source.weights.size(), " weights and ", source.bias.size(), " biases for ", rows, " rows of ",
                   cols, " columns");
  if (source.bits < kLeastCopyBits || source.bits > kMostCopyBits)
    return Invalid("copy of a decider: ", source.bits, " bits, need ", kLeastCopyBits, " to ", kMostCopyBits);
  if (std::ssize(frame.mean) != cols || std::ssize(frame.directions) % cols != 0 || std::ssize(frame.directions) / cols > kMostDirections)
    return Invalid("copy of a decider: a mean of ", frame.mean.size(), " and directions of ", frame.directions.size(), " numbers for ",
                   cols, " columns, need at most ", kMostDirections, " directions");
  if (!AreFinite(source.weights)) return Invalid("copy of a decider: a weight is not finite; this layer has no sparse form");
  if (!AreFinite(frame.mean) || !AreFinite(frame.directions))
    return Invalid("copy of a decider: a mean or direction is not finite; calibrate again");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeciderCopy> DeciderCopy::Create(const Source& source, InputFrame frame) {
  LIME_RETURN_IF_ERROR(CheckSource(source, frame));
  return DeciderCopy(source, std::move(frame));
}

DeciderCopy::DeciderCopy(const Source& source, InputFrame frame)
    : rows_(source.rows),
      cols_(source.cols),
      directions_(std::ssize(frame.directions) / source.cols),
      order_(source.order),
      frame_(std::move(frame)),
      frame_norm_(NormAbove(std::span<const float>(frame_.directions))),
      mean_norm_(NormAbove(std::span<const float>(frame_.mean))),
      codes_(static_cast<size_t>(rows_ * cols_)),
      kept_(static_cast<size_t>(rows_ * directions_)),
      rows_of_(static_cast<size_t>(rows_)) {
  for (int64_t row = 0; row < rows_; ++row) {
    if (!source.bias.empty()) rows_of_[static_cast<size_t>(row)].bias = source.bias[static_cast<size_t>(row)];
    CopyRow(source.weights.subspan(static_cast<size_t>(row * cols_), static_cast<size_t>(cols_)), source.bits, row);
  }
}

void DeciderCopy::CopyRow(std::span<const float> weights, int bits, int64_t row) {
  std::vector<float> read;  // as the layer reads them
  for (const float weight : weights) read.push_back(AsRead(weight, order_));
  const int most = (1 << (bits - 1)) - 1;
  Row& out = rows_of_[static_cast<size_t>(row)];
  out.scale = BestScale(read, most);
  std::vector<double> copy, error;
  for (size_t k = 0; k < read.size(); ++k) {
    const int8_t code = CodeOf(read[k], out.scale, most);
    codes_[static_cast<size_t>(row * cols_) + k] = code;
    copy.push_back(code * static_cast<double>(out.scale));  // exact
    error.push_back(static_cast<double>(read[k]) - copy[k]);
  }
  out.bounds.weight = FloatAbove(NormAbove(std::span<const float>(read)));
  out.bounds.copy = FloatAbove(NormAbove(std::span<const double>(copy)));
  out.bounds.error = FloatAbove(NormAbove(std::span<const double>(error)));
  double product = 0;
  for (size_t k = 0; k < error.size(); ++k) product += error[k] * static_cast<double>(frame_.mean[k]);
  const double rounding = (static_cast<double>(cols_) + 8) * kHalfUlp;  // of a product's sum of `cols` elements
  out.bounds.mean_product = FloatAbove(product + rounding * static_cast<double>(out.bounds.error) * mean_norm_);
  KeepError(error, row);
}

void DeciderCopy::KeepError(std::span<const double> error, int64_t row) {
  std::vector<double> along(static_cast<size_t>(directions_)), kept(along.size());
  double largest = 0;
  for (size_t j = 0; j < along.size(); ++j) {
    const float* direction = frame_.directions.data() + static_cast<int64_t>(j) * cols_;
    for (size_t k = 0; k < error.size(); ++k) along[j] += error[k] * static_cast<double>(direction[k]);
    largest = std::max(largest, std::abs(along[j]));
  }
  constexpr int kMost = 127;
  Row& out = rows_of_[static_cast<size_t>(row)];
  const float widest = FloatAbove(largest / kMost);
  out.kept_scale = std::isfinite(widest) ? widest : 0.0f;  // then nothing is kept, and nothing proven
  for (size_t j = 0; j < along.size(); ++j) {
    const int8_t code = CodeOf(along[j], out.kept_scale, kMost);
    kept_[static_cast<size_t>(row * directions_) + j] = code;
    kept[j] = code * static_cast<double>(out.kept_scale);  // exact
    along[j] -= kept[j];
  }
  const double rounding = (static_cast<double>(cols_) + 8) * kHalfUlp;
  out.bounds.kept = FloatAbove(NormAbove(std::span<const double>(kept)));
  out.bounds.kept_error =
      FloatAbove(NormAbove(std::span<const double>(along)) + rounding * static_cast<double>(out.bounds.error) * frame_norm_);
}

}  // namespace lime
