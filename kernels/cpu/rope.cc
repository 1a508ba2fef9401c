#include "kernels/cpu/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "planner/base/check.h"

namespace lime::cpu {
namespace {

constexpr double kTau = 2 * std::numbers::pi;

std::vector<double> PlainFrequencies(double theta, int64_t dims) {
  std::vector<double> f(dims / 2);
  for (size_t i = 0; i < f.size(); ++i) f[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
  return f;
}

// theta' = theta (factor length / original - (factor - 1)) ^ (dims / (dims - 2)).
double DynamicTheta(const RopeConfig& rope, int64_t length) {
  const double original = static_cast<double>(rope.original_max_position);
  const double stretch = rope.factor * std::max(static_cast<double>(length), original) / original - (rope.factor - 1);
  return rope.theta * std::pow(stretch, static_cast<double>(rope.dims) / static_cast<double>(rope.dims - 2));
}

// Divides wavelengths above original / low_freq_factor by factor. Keeps wavelengths below original
// / high_freq_factor. Blends the ones between.
double Llama3Frequency(const RopeConfig& rope, double f) {
  // Turns over the original context.
  const double turns = static_cast<double>(rope.original_max_position) * f / kTau;
  if (turns > rope.high_freq_factor) return f;
  if (turns < rope.low_freq_factor) return f / rope.factor;
  const double smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * f / rope.factor + smooth * f;
}

// The (fractional) dimension pair whose frequency makes `turns` turns over the original context.
double YarnDimension(const RopeConfig& rope, double turns) {
  return static_cast<double>(rope.dims) * std::log(static_cast<double>(rope.original_max_position) / (turns * kTau)) /
         (2 * std::log(rope.theta));
}

void ApplyYarn(const RopeConfig& rope, std::vector<double>& f) {
  double low = YarnDimension(rope, rope.beta_fast), high = YarnDimension(rope, rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.dims - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < f.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    f[i] = f[i] / rope.factor * ramp + f[i] * (1 - ramp);
  }
}

}  // namespace

std::vector<double> RopeInverseFrequencies(const RopeConfig& rope, int64_t sequence_length) {
  const double theta = rope.type == RopeType::kDynamic ? DynamicTheta(rope, sequence_length) : rope.theta;
  std::vector<double> f = PlainFrequencies(theta, rope.dims);
  switch (rope.type) {
    case RopeType::kLinear:
      for (double& x : f) x /= rope.factor;
      break;
    case RopeType::kLlama3:
      for (double& x : f) x = Llama3Frequency(rope, x);
      break;
    case RopeType::kYarn:
      ApplyYarn(rope, f);
      break;
    case RopeType::kProportional:
      for (double& x : f) x /= rope.factor;
      std::fill(f.begin() + rope.turning / 2, f.end(), 0.0);
      break;
    case RopeType::kLongRope: {
      const std::vector<double>& factors = sequence_length > rope.original_max_position ? rope.long_factors : rope.short_factors;
      LIME_CHECK_EQ(factors.size(), f.size());
      for (size_t i = 0; i < f.size(); ++i) f[i] /= factors[i];
      break;
    }
    case RopeType::kDefault:
    case RopeType::kDynamic:
      break;
  }
  return f;
}

RopeTable::RopeTable(const RopeConfig& rope, int64_t positions) : positions_(positions), half_(rope.dims / 2) {
  LIME_CHECK(rope.dims > 0 && rope.dims % 2 == 0) << rope.dims;
  const int64_t rows = rope.TableRows(positions_), long_row = rope.type == RopeType::kLongRope ? rope.original_max_position : rows;
  cos_.resize(rows * half_);
  sin_.resize(rows * half_);
  const bool scaled = rope.type == RopeType::kYarn || rope.type == RopeType::kLongRope;
  const double attention_factor = scaled ? rope.attention_factor : 1.0;
  std::vector<double> f = RopeInverseFrequencies(rope, 0);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t p = row < long_row ? row : row - long_row;
    if (row == long_row) f = RopeInverseFrequencies(rope, positions_);
    if (rope.type == RopeType::kDynamic && p >= rope.original_max_position) f = RopeInverseFrequencies(rope, p + 1);
    for (int64_t i = 0; i < half_; ++i) {
      const double angle = static_cast<double>(p) * f[i];
      cos_[row * half_ + i] = static_cast<float>(std::cos(angle) * attention_factor);
      sin_[row * half_ + i] = static_cast<float>(std::sin(angle) * attention_factor);
    }
  }
  for (int64_t p = 0; rope.query_beta != 0 && p < positions_; ++p)
    query_factors_.push_back(static_cast<float>(1 + rope.query_beta * std::log(1 + static_cast<double>(p / rope.original_max_position))));
}

}  // namespace lime::cpu
