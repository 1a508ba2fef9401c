#include "common/proven_zeros/input_frame.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "planner/base/random.h"

namespace lime {
namespace {

constexpr int kIterations = 8;
constexpr float kLeastLength = 1e-6f;  // of what remains of a unit vector once others are subtracted

// Eight partial sums, which the compiler keeps in vectors.
float Dot(const float* a, const float* b, int64_t n) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int l = 0; l < 8; ++l) sums[l] += a[i + l] * b[i + l];
  for (; i < n; ++i) sums[i % 8] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void AddScaled(const float* from, float scale, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] += scale * from[i];
}

// Work is divided into groups of rows, or of columns.
constexpr int64_t kRowGroup = 16, kColGroup = 512;

int64_t Groups(int64_t count, int64_t group) {
  return (count + group - 1) / group;
}

// Subtracts from a row what it has along each of `others`.
void Subtract(std::span<const float> others, std::span<float> row, const ForEach& for_each) {
  const int64_t cols = std::ssize(row), count = std::ssize(others) / cols;
  std::vector<float> along(static_cast<size_t>(count));
  for_each(Groups(count, kRowGroup), [&](int64_t group) {
    for (int64_t i = group * kRowGroup; i < std::min(count, (group + 1) * kRowGroup); ++i)
      along[static_cast<size_t>(i)] = Dot(row.data(), others.data() + i * cols, cols);
  });
  for_each(Groups(cols, kColGroup), [&](int64_t group) {
    const int64_t begin = group * kColGroup, end = std::min(cols, begin + kColGroup);
    for (int64_t i = 0; i < count; ++i)
      AddScaled(others.data() + i * cols + begin, -along[static_cast<size_t>(i)], end - begin, row.data() + begin);
  });
}

// Makes rows of length 1 at right angles to those before: Gram-Schmidt, whose second pass removes what
// rounding has left. Rows of which nothing is left are dropped. Returns the number of rows.
int64_t MakeOrthonormal(std::vector<float>& rows, int64_t cols, const ForEach& for_each) {
  int64_t kept = 0;
  const int64_t count = std::ssize(rows) / cols;
  for (int64_t j = 0; j < count; ++j) {
    const float* const from = rows.data() + j * cols;
    const float length = std::sqrt(Dot(from, from, cols));
    if (!(length > 0) || !std::isfinite(length)) continue;
    float* const row = rows.data() + kept * cols;
    for (int64_t k = 0; k < cols; ++k) row[k] = from[k] / length;
    for (int pass = 0; pass < 2; ++pass)
      Subtract({rows.data(), static_cast<size_t>(kept * cols)}, {row, static_cast<size_t>(cols)}, for_each);
    const float left = std::sqrt(Dot(row, row, cols));
    if (!(left > kLeastLength)) continue;
    for (int64_t k = 0; k < cols; ++k) row[k] /= left;
    ++kept;
  }
  rows.resize(static_cast<size_t>(kept * cols));
  return kept;
}

// The covariance, but for a factor, times each row.
std::vector<float> TimesCovariance(const std::vector<float>& inputs, const std::vector<float>& rows, int64_t cols,
                                   const ForEach& for_each) {
  std::vector<float> out(rows.size());
  const int64_t count = std::ssize(rows) / cols;
  for_each(Groups(count, kRowGroup), [&](int64_t group) {
    const int64_t begin = group * kRowGroup * cols, end = std::min(count, (group + 1) * kRowGroup) * cols;
    for (int64_t i = 0; i < std::ssize(inputs); i += cols) {
      const float* const input = inputs.data() + i;
      for (int64_t j = begin; j < end; j += cols) AddScaled(input, Dot(input, rows.data() + j, cols), cols, out.data() + j);
    }
  });
  return out;
}

// The largest magnitude becomes 1, so that no product overflows.
void Normalise(std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  if (largest == 0) return;
  for (float& value : values) value /= largest;
}

}  // namespace

InputFrame FrameOf(std::span<const float> inputs, int64_t cols, int64_t directions, const ForEach& for_each) {
  InputFrame frame{.mean = std::vector<float>(static_cast<size_t>(cols)), .directions = {}};
  std::vector<float> finite;
  std::vector<double> sums(static_cast<size_t>(cols));
  for (int64_t i = 0; i + cols <= std::ssize(inputs); i += cols) {
    const std::span<const float> row = inputs.subspan(static_cast<size_t>(i), static_cast<size_t>(cols));
    if (!std::ranges::all_of(row, [](float value) { return std::isfinite(value); })) continue;
    finite.insert(finite.end(), row.begin(), row.end());
    for (size_t k = 0; k < row.size(); ++k) sums[k] += static_cast<double>(row[k]);
  }
  const int64_t count = std::ssize(finite) / cols;
  if (count == 0) return frame;
  for (size_t k = 0; k < sums.size(); ++k) frame.mean[k] = static_cast<float>(sums[k] / static_cast<double>(count));
  for (size_t i = 0; i < finite.size(); ++i) finite[i] -= frame.mean[i % static_cast<size_t>(cols)];
  Normalise(finite);
  Random random(1);
  std::vector<float> rows(static_cast<size_t>(std::min({directions, count, cols}) * cols));
  for (float& value : rows) value = static_cast<float>(random.Uniform() - 0.5);
  MakeOrthonormal(rows, cols, for_each);
  for (int i = 0; i < kIterations && !rows.empty(); ++i) {
    rows = TimesCovariance(finite, rows, cols, for_each);
    MakeOrthonormal(rows, cols, for_each);
  }
  frame.directions = std::move(rows);
  return frame;
}

InputFrame FirstDirections(const InputFrame& frame, int64_t directions) {
  const size_t count = std::min(frame.directions.size(), frame.mean.size() * static_cast<size_t>(directions));
  return {.mean = frame.mean, .directions = {frame.directions.begin(), frame.directions.begin() + static_cast<int64_t>(count)}};
}

}  // namespace lime
