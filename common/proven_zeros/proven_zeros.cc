#include "common/proven_zeros/proven_zeros.h"

#include <cmath>
#include <limits>

#include "common/proven_zeros/rounded_up.h"
#include "planner/base/check.h"

namespace lime {

InputNorms NormsOf(const DeciderView& copy, std::span<const float> x, std::span<const double> along, std::span<const double> rest) {
  InputNorms norms{.input = NormAbove(x), .along = NormAbove(along)};
  norms.product = RelativeError(SumOrder::kPortable, copy.cols) * norms.input;
  // Each element of rest has 2 roundings for each direction and one of its first difference. None is
  // of a number above |x| + |mean| + sum of |U| |a|, whose norm is at most the sum of the norms.
  const double rounding = (2 * static_cast<double>(copy.directions) + 8) * kHalfUlp;
  norms.rest = NormAbove(rest) + rounding * (norms.input + copy.mean_norm + copy.axes_norm * norms.along);
  return norms;
}

ZBound BoundOf(const DeciderView& copy, SumOrder order, int64_t row, float bias, const InputNorms& norms, double code_product,
               double kept_product) {
  const CopiedRow& of = copy.of_rows[row];
  const double weight = of.weight, copied = of.copy, error = of.error, kept = of.kept, kept_error = of.kept_error;
  if (!StaysFinite(weight, norms.input) || !StaysFinite(copied, norms.input))
    return {.estimate = 0, .slack = std::numeric_limits<double>::infinity()};
  const double copied_sum = code_product * static_cast<double>(of.scale), kept_sum = kept_product * static_cast<double>(of.kept_scale);
  const double kept_rounding = (static_cast<double>(copy.directions) + 8) * kHalfUlp * kept * norms.along;
  const double sums = RelativeError(order, copy.cols) * weight * norms.input + copied * norms.product + 2 * kUnderflow;
  const double unread = order == SumOrder::kBf16Dot ? static_cast<double>(of.subnormal) * norms.input : 0;
  const double slack = error * norms.rest + kept_error * norms.along + kept_rounding + sums + unread;
  const double mean_product = of.mean_product;
  // The roundings of this function: fewer than 2^5 for each term, of at most 2^-53 of it.
  const double terms = std::abs(copied_sum) + std::abs(mean_product) + std::abs(kept_sum) + std::abs(static_cast<double>(bias)) + slack;
  return {.estimate = copied_sum + mean_product + kept_sum + static_cast<double>(bias), .slack = slack + 0x1p-47 * terms};
}

ProvenZeros::ProvenZeros(const DeciderView& copy, SumOrder order, std::span<const float> bias)
    : copy_(copy),
      order_(order),
      bias_(bias),
      x_(static_cast<size_t>(copy.cols)),
      rest_(static_cast<size_t>(copy.cols)),
      along_(static_cast<size_t>(copy.directions)) {
  LIME_CHECK(bias.empty() || std::ssize(bias) == copy.rows) << bias.size();
}

void ProvenZeros::SetInput(std::span<const float> x) {
  LIME_CHECK_EQ(x.size(), x_.size());
  for (size_t k = 0; k < x.size(); ++k) {
    x_[k] = AsRead(x[k], order_);
    rest_[k] = static_cast<double>(x_[k]) - static_cast<double>(copy_.mean[k]);
  }
  for (size_t j = 0; j < along_.size(); ++j) {
    const BF16* const axis = copy_.axes + j * x_.size();
    along_[j] = 0;
    for (size_t k = 0; k < x_.size(); ++k) along_[j] += static_cast<double>(ToFloat(axis[k])) * rest_[k];
  }
  for (size_t j = 0; j < along_.size(); ++j) {
    const BF16* const axis = copy_.axes + j * x_.size();
    for (size_t k = 0; k < x_.size(); ++k) rest_[k] -= static_cast<double>(ToFloat(axis[k])) * along_[j];
  }
  norms_ = NormsOf(copy_, x_, along_, rest_);
}

ZBound ProvenZeros::BoundOf(int64_t row, double code_product, double kept_product) const {
  const float bias = bias_.empty() ? 0.0f : bias_[static_cast<size_t>(row)];
  return lime::BoundOf(copy_, order_, row, bias, norms_, code_product, kept_product);
}

double ProvenZeros::CodeProduct(int64_t row) const {
  double sum = 0;
  for (size_t k = 0; k < x_.size(); ++k) sum += copy_.CodeAt(row, static_cast<int64_t>(k)) * static_cast<double>(x_[k]);
  return sum;
}

double ProvenZeros::KeptProduct(int64_t row) const {
  const int8_t* const codes = copy_.kept + row * copy_.directions;
  double sum = 0;
  for (size_t j = 0; j < along_.size(); ++j) sum += codes[j] * along_[j];
  return sum;
}

void ProvenZeros::MarkUnproven(float threshold, std::vector<bool>& unproven) const {
  LIME_CHECK_EQ(std::ssize(unproven), copy_.rows);
  for (int64_t row = 0; row < copy_.rows; ++row) {
    if (!BoundOf(row).Proves(threshold)) unproven[static_cast<size_t>(row)] = true;
  }
}

}  // namespace lime
