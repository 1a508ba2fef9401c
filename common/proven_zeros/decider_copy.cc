#include "common/proven_zeros/decider_copy.h"

#include <algorithm>
#include <bit>
#include <cmath>

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

// Puts a code into the block of its column, whose bytes are zero before.
void PutCode(std::span<uint8_t> row, int64_t col, int code, int bits) {
  const auto value = static_cast<unsigned>(code + (1 << (bits - 1)));
  uint8_t* const block = row.data() + col / kCodeBlock * kCodeBlock / 8 * bits;
  const int64_t at = col % kCodeBlock;
  if (bits == 8) {
    block[at] = static_cast<uint8_t>(value);
    return;
  }
  block[at % 16] |= static_cast<uint8_t>((value & 15u) << (at < 16 ? 0 : 4));
  for (int j = 0; j < bits - 4; ++j) block[16 + 4 * j + at / 8] |= static_cast<uint8_t>(((value >> (4 + j)) & 1u) << (at % 8));
}

absl::Status CheckFrame(int64_t cols, int bits, const InputFrame& frame) {
  if (cols < 1 || cols > kMostProvenCols) return Invalid("copy of a decider: ", cols, " columns, need 1 to ", kMostProvenCols);
  if (bits < kLeastCopyBits || bits > kMostCopyBits)
    return Invalid("copy of a decider: ", bits, " bits, need ", kLeastCopyBits, " to ", kMostCopyBits);
  if (std::ssize(frame.mean) != cols || std::ssize(frame.directions) % cols != 0 || std::ssize(frame.directions) / cols > kMostDirections)
    return Invalid("copy of a decider: a mean of ", frame.mean.size(), " and directions of ", frame.directions.size(), " numbers for ",
                   cols, " columns, need at most ", kMostDirections, " directions");
  const bool fits = std::ranges::all_of(frame.directions, [](float value) { return std::isfinite(ToFloat(FromFloat<BF16>(value))); });
  if (!AreFinite(frame.mean) || !fits) return Invalid("copy of a decider: a mean or direction is not finite; calibrate again");
  return absl::OkStatus();
}

double AxesNorm(std::span<const BF16> axes) {
  double sum = 0;
  for (const BF16 value : axes) sum += double{ToFloat(value)} * double{ToFloat(value)};
  return std::sqrt(sum) * (1 + (static_cast<double>(axes.size()) + 8) * kHalfUlp);
}

}  // namespace

// ---- A view

int DeciderView::CodeAt(int64_t row, int64_t col) const {
  const uint8_t* const block = CodesOf(row) + col / kCodeBlock * kCodeBlock / 8 * bits;
  const int64_t at = col % kCodeBlock;
  if (bits == 8) return block[at] - 128;
  int value = (block[at % 16] >> (at < 16 ? 0 : 4)) & 15;
  for (int j = 0; j < bits - 4; ++j) value |= ((block[16 + 4 * j + at / 8] >> (at % 8)) & 1) << (4 + j);
  return value - (1 << (bits - 1));
}

void MeasureFrame(DeciderView& view) {
  view.mean_norm = NormAbove(std::span(view.mean, static_cast<size_t>(view.cols)));
  view.axes_norm = AxesNorm(std::span(view.axes, static_cast<size_t>(view.directions * view.cols)));
}

// ---- Rows

absl::StatusOr<RowCopier> RowCopier::Create(int64_t cols, int bits, const InputFrame& frame) {
  LIME_RETURN_IF_ERROR(CheckFrame(cols, bits, frame));
  return RowCopier(bits, frame);
}

RowCopier::RowCopier(int bits, const InputFrame& frame) : bits_(bits), mean_(frame.mean) {
  for (const float value : frame.directions) axes_.push_back(FromFloat<BF16>(value));
  columns_.reserve(axes_.size());
  for (int64_t k = 0; k < cols(); ++k) {
    for (int64_t j = 0; j < directions(); ++j) columns_.push_back(axes_[static_cast<size_t>(j * cols() + k)]);
  }
  mean_norm_ = NormAbove(std::span<const float>(mean_));
  axes_norm_ = AxesNorm(axes_);
}

bool RowCopier::Copy(std::span<const float> weights, std::span<uint8_t> codes, std::span<int8_t> kept, CopiedRow& row) const {
  if (!AreFinite(weights)) return false;
  const int most = (1 << (bits_ - 1)) - 1;
  row = {.scale = BestScale(weights, most)};
  std::ranges::fill(codes, uint8_t{0});
  std::vector<double> copy, error;
  std::vector<float> subnormal;
  for (int64_t k = 0; k < static_cast<int64_t>(CodeRowBytes(cols(), bits_)) * 8 / bits_; ++k) {
    const float weight = k < cols() ? weights[static_cast<size_t>(k)] : 0.0f;
    const int8_t code = CodeOf(weight, row.scale, most);
    PutCode(codes, k, code, bits_);
    if (k >= cols()) continue;
    copy.push_back(code * static_cast<double>(row.scale));  // exact
    error.push_back(static_cast<double>(weight) - copy.back());
    if (AsRead(weight, SumOrder::kBf16Dot) != weight) subnormal.push_back(weight);
  }
  row.weight = FloatAbove(NormAbove(weights));
  row.copy = FloatAbove(NormAbove(std::span<const double>(copy)));
  row.error = FloatAbove(NormAbove(std::span<const double>(error)));
  row.subnormal = FloatAbove(NormAbove(std::span<const float>(subnormal)));
  double product = 0;
  for (size_t k = 0; k < error.size(); ++k) product += error[k] * static_cast<double>(mean_[k]);
  const double rounding = (static_cast<double>(cols()) + 8) * kHalfUlp;  // of a product's sum of `cols` elements
  row.mean_product = FloatAbove(product + rounding * static_cast<double>(row.error) * mean_norm_);
  KeepError(error, kept, row);
  return true;
}

void RowCopier::KeepError(std::span<const double> error, std::span<int8_t> kept_codes, CopiedRow& row) const {
  std::vector<double> along(static_cast<size_t>(directions())), kept(along.size());
  for (size_t k = 0; k < error.size(); ++k) {  // all sums side by side: one alone waits for each of its additions
    const BF16* const column = columns_.data() + k * along.size();
    for (size_t j = 0; j < along.size(); ++j) along[j] += error[k] * static_cast<double>(ToFloat(column[j]));
  }
  double largest = 0;
  for (const double sum : along) largest = std::max(largest, std::abs(sum));
  constexpr int kMost = 127;
  const float widest = FloatAbove(largest / kMost);
  row.kept_scale = std::isfinite(widest) ? widest : 0.0f;  // then nothing is kept, and nothing proven
  for (size_t j = 0; j < along.size(); ++j) {
    kept_codes[j] = CodeOf(along[j], row.kept_scale, kMost);
    kept[j] = kept_codes[j] * static_cast<double>(row.kept_scale);  // exact
    along[j] -= kept[j];
  }
  const double rounding = (static_cast<double>(cols()) + 8) * kHalfUlp;
  row.kept = FloatAbove(NormAbove(std::span<const double>(kept)));
  row.kept_error = FloatAbove(NormAbove(std::span<const double>(along)) + rounding * static_cast<double>(row.error) * axes_norm_);
}

// ---- All rows

absl::StatusOr<DeciderCopy> DeciderCopy::Create(const Source& source, const InputFrame& frame) {
  const int64_t rows = source.rows, cols = source.cols;
  LIME_RETURN_IF_ERROR(CheckFrame(cols, source.bits, frame));
  if (rows < 1 || rows > kMostCopyWeights / cols)
    return Invalid("copy of a decider: ", rows, " rows of ", cols, " columns, need 1 row and at most ", kMostCopyWeights, " weights");
  if (std::ssize(source.weights) != rows * cols)
    return Invalid("copy of a decider: ", source.weights.size(), " weights for ", rows, " rows of ", cols, " columns");
  if (!AreFinite(source.weights)) return Invalid("copy of a decider: a weight is not finite; this layer has no sparse form");
  return DeciderCopy(source, frame);
}

DeciderCopy::DeciderCopy(const Source& source, const InputFrame& frame)
    : rows_(source.rows), cols_(source.cols), directions_(std::ssize(frame.directions) / source.cols), bits_(source.bits) {
  const RowCopier copier = RowCopier::Create(cols_, bits_, frame).value();
  mean_.assign(copier.mean().begin(), copier.mean().end());
  axes_.assign(copier.axes().begin(), copier.axes().end());
  const auto part = [](int64_t row, int64_t size, auto& all) {
    return std::span(all).subspan(static_cast<size_t>(row * size), static_cast<size_t>(size));
  };
  codes_.resize(static_cast<size_t>(rows_ * CodeRowBytes(cols_, bits_)));
  kept_.resize(static_cast<size_t>(rows_ * directions_));
  of_rows_.resize(static_cast<size_t>(rows_));
  source.for_each(rows_, [&](int64_t row) {
    copier.Copy(part(row, cols_, source.weights), part(row, CodeRowBytes(cols_, bits_), codes_), part(row, directions_, kept_),
                of_rows_[static_cast<size_t>(row)]);
  });
  DeciderView measured = view();
  MeasureFrame(measured);
  mean_norm_ = measured.mean_norm, axes_norm_ = measured.axes_norm;
}

DeciderView DeciderCopy::view() const {
  return {.rows = rows_,
          .cols = cols_,
          .directions = directions_,
          .bits = bits_,
          .codes = codes_.data(),
          .kept = kept_.data(),
          .of_rows = of_rows_.data(),
          .mean = mean_.data(),
          .axes = axes_.data(),
          .mean_norm = mean_norm_,
          .axes_norm = axes_norm_};
}

}  // namespace lime
