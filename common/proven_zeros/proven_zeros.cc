#include "common/proven_zeros/proven_zeros.h"

#include <cmath>
#include <limits>

#include "common/proven_zeros/rounded_up.h"
#include "planner/base/check.h"

namespace lime {

ProvenZeros::ProvenZeros(const DeciderCopy& copy)
    : copy_(copy),
      x_(static_cast<size_t>(copy.cols())),
      rest_(static_cast<size_t>(copy.cols())),
      along_(static_cast<size_t>(copy.directions())) {}

void ProvenZeros::SetInput(std::span<const float> x) {
  LIME_CHECK_EQ(x.size(), x_.size());
  const InputFrame& frame = copy_.frame();
  for (size_t k = 0; k < x.size(); ++k) {
    x_[k] = AsRead(x[k], copy_.order());
    rest_[k] = static_cast<double>(x_[k]) - static_cast<double>(frame.mean[k]);
  }
  for (size_t j = 0; j < along_.size(); ++j) {
    const float* direction = frame.directions.data() + j * x_.size();
    along_[j] = 0;
    for (size_t k = 0; k < x_.size(); ++k) along_[j] += static_cast<double>(direction[k]) * rest_[k];
  }
  for (size_t j = 0; j < along_.size(); ++j) {
    const float* direction = frame.directions.data() + j * x_.size();
    for (size_t k = 0; k < x_.size(); ++k) rest_[k] -= static_cast<double>(direction[k]) * along_[j];
  }
  input_norm_ = NormAbove(std::span<const float>(x_));
  along_norm_ = NormAbove(std::span<const double>(along_));
  // Each element of rest_ has 2 roundings for each direction and one of its first difference. None is
  // of a number above |x| + |mean| + sum of |U| |a|, whose norm is at most the sum of the norms.
  const double rounding = (2 * static_cast<double>(copy_.directions()) + 8) * kHalfUlp;
  rest_norm_ = NormAbove(std::span<const double>(rest_)) + rounding * (input_norm_ + copy_.mean_norm() + copy_.frame_norm() * along_norm_);
}

ZBound ProvenZeros::BoundOf(int64_t row, double copy_product, double kept_product) const {
  const RowBounds& bounds = copy_.bounds(row);
  const double weight = bounds.weight, copied = bounds.copy, error = bounds.error, kept = bounds.kept, kept_error = bounds.kept_error;
  const double mean_product = bounds.mean_product, bias = copy_.bias(row);
  if (!StaysFinite(weight, input_norm_) || !StaysFinite(copied, input_norm_))
    return {.estimate = 0, .slack = std::numeric_limits<double>::infinity()};
  const double kept_rounding = (static_cast<double>(copy_.directions()) + 8) * kHalfUlp * kept * along_norm_;
  const double sums = RelativeError(copy_.order(), copy_.cols()) * weight * input_norm_ +
                      RelativeError(SumOrder::kPortable, copy_.cols()) * copied * input_norm_ + 2 * kUnderflow;
  const double slack = error * rest_norm_ + kept_error * along_norm_ + kept_rounding + sums;
  // The roundings of this function: fewer than 2^5 for each term, of at most 2^-53 of it.
  const double terms = std::abs(copy_product) + std::abs(mean_product) + std::abs(kept_product) + std::abs(bias) + slack;
  return {.estimate = copy_product + mean_product + kept_product + bias, .slack = slack + 0x1p-47 * terms};
}

double ProvenZeros::CopyProduct(int64_t row) const {
  const std::span<const int8_t> codes = copy_.codes(row);
  double sum = 0;
  for (size_t k = 0; k < codes.size(); ++k) sum += codes[k] * static_cast<double>(x_[k]);
  return sum * static_cast<double>(copy_.scale(row));
}

double ProvenZeros::KeptProduct(int64_t row) const {
  const std::span<const int8_t> codes = copy_.kept(row);
  double sum = 0;
  for (size_t j = 0; j < codes.size(); ++j) sum += codes[j] * along_[j];
  return sum * static_cast<double>(copy_.kept_scale(row));
}

void ProvenZeros::MarkUnproven(float threshold, std::vector<bool>& unproven) const {
  LIME_CHECK_EQ(std::ssize(unproven), copy_.rows());
  for (int64_t row = 0; row < copy_.rows(); ++row) {
    if (!BoundOf(row).Proves(threshold)) unproven[static_cast<size_t>(row)] = true;
  }
}

}  // namespace lime
