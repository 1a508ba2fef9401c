#include "testbed/make_model/planted_neurons.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "daemon/stores/float_codec.h"
#include "planner/base/check.h"
#include "planner/base/strings.h"
#include "testbed/make_model/draws.h"

namespace lime {
namespace {

constexpr int64_t kWidthsOfDirection = 32;      // d / r
constexpr int64_t kMostWidthsOfDirection = 80;  // where d has fewer Walsh functions
constexpr double kWalkVariance = 0.65, kTokenVariance = 0.35;
constexpr double kWalkKept = 0.89483931681436979;  // exp(-1 / 9)
constexpr double kBeyond = 0.5;                    // of a token, outside U: its norm / sqrt(r)
constexpr double kThresholdDeviation = 0.6;
constexpr double kAdded = 0.05;  // by each half of a layer, of the norm of the residual stream
constexpr int64_t kDrawnStates = 1 << 15;
constexpr uint64_t kStatesKey = 0x706c616e746564;

// The period of Walsh functions is a power of two, and divides the width.
int64_t DirectionsOf(int64_t width) {
  return std::min(width / kWidthsOfDirection, (width & -width) - 1);
}

// Walsh functions 0 to r have this period.
size_t PeriodOf(int64_t width) {
  return std::bit_ceil(static_cast<size_t>(DirectionsOf(width)) + 1);
}

// The sums of all values with the signs of each Walsh function, in place (fast Walsh-Hadamard
// transform). Twice is once, times the number of values.
void Transform(std::span<float> values) {
  for (size_t half = 1; half < values.size(); half *= 2) {
    for (size_t begin = 0; begin < values.size(); begin += 2 * half) {
      for (size_t i = begin; i < begin + half; ++i) {
        const float a = values[i], b = values[i + half];
        values[i] = a + b;
        values[i + half] = a - b;
      }
    }
  }
}

// For each function 0 to r, and zero for others: the sum of the vector's elements with its signs.
std::vector<float> SumsOf(std::span<const float> vector) {
  const size_t period = PeriodOf(std::ssize(vector));
  std::vector<float> sums(period);
  for (size_t i = 0; i < vector.size(); ++i) sums[i % period] += vector[i];
  Transform(sums);
  std::fill(sums.begin() + DirectionsOf(std::ssize(vector)) + 1, sums.end(), 0.0f);
  return sums;
}

// Adds factor * (functions times `sums`) to the vector.
void AddFunctions(std::vector<float> sums, float factor, std::span<float> vector) {
  Transform(sums);
  for (size_t i = 0; i < vector.size(); ++i) vector[i] += factor * sums[i % sums.size()];
}

void ScaleToNorm(double norm, std::span<float> vector) {
  const double squares = std::inner_product(vector.begin(), vector.end(), vector.begin(), 0.0);
  const auto factor = static_cast<float>(squares > 0 ? norm / std::sqrt(squares) : 0);
  for (float& value : vector) value *= factor;
}

// Makes the rows of a matrix, ascending.
class RowMaker {
 public:
  RowMaker(const PlantedMatrix& matrix, int64_t cols, uint64_t outside_key, uint64_t inside_key)
      : matrix_(matrix),
        outside_key_(outside_key),
        inside_key_(inside_key),
        drawn_((matrix.directions + 1) / 2 * 2),
        coordinates_(static_cast<size_t>(drawn_)),
        row_(static_cast<size_t>(cols)) {}

  // REQUIRES: with a walk, rows come one after another from 0
  std::span<const float> Make(int64_t row) {
    std::ranges::fill(row_, 0.0f);
    if (matrix_.outside > 0) DrawOutside(row);
    NextCoordinates(row);
    std::vector<float> sums(PeriodOf(std::ssize(row_)));
    std::copy_n(coordinates_.begin(), matrix_.directions, sums.begin() + 1);
    AddFunctions(std::move(sums), static_cast<float>(1 / std::sqrt(static_cast<double>(row_.size()))), row_);
    return row_;
  }

  void NextCoordinates(int64_t row) {
    std::vector<float> drawn(coordinates_.size());
    DrawNormals(inside_key_, row * drawn_, drawn);
    const bool goes_on = matrix_.walk && row > 0;
    const double kept = goes_on ? kWalkKept : 0, added = std::sqrt(1 - kept * kept) * matrix_.inside;
    for (size_t i = 0; i < drawn.size(); ++i)
      coordinates_[i] = static_cast<float>(kept * coordinates_[i] + added * static_cast<double>(drawn[i]));
    if (matrix_.unit) ScaleToNorm(matrix_.inside, std::span(coordinates_).first(static_cast<size_t>(matrix_.directions)));
  }

 private:
  void DrawOutside(int64_t row) {
    const int64_t drawn = std::ssize(row_);
    DrawNormals(outside_key_, row * drawn, row_);
    AddFunctions(SumsOf(row_), -1 / static_cast<float>(drawn), row_);
    ScaleToNorm(matrix_.outside, row_);
  }

  const PlantedMatrix matrix_;
  const uint64_t outside_key_, inside_key_;
  const int64_t drawn_;  // numbers of a row's coordinates: even
  std::vector<float> coordinates_, row_;
};

// Squares of the norm of the residual stream, and of its part outside U, before half `half`.
struct Norms {
  double all = 0, outside = 0;
};
Norms NormsBefore(int64_t half, double directions) {
  const double begin = directions * (1 + kBeyond * kBeyond);
  const double all = begin * std::pow(1 + kAdded * kAdded, static_cast<double>(half));
  return {.all = all, .outside = all - directions};
}

}  // namespace

absl::Status CheckPlantedNeurons(const ModelConfig& config) {
  if (config.model_type != "opt") return Invalid("planted neurons need the family opt, not ", Text(config.model_type));
  if (config.quantization) return Invalid("planted neurons are not supported with packed weights; leave out --bits");
  const int64_t d = config.hidden_size;
  if (d < 2 * kWidthsOfDirection || DirectionsOf(d) * kMostWidthsOfDirection < d)
    return Invalid("planted neurons need a width that a power of two above 1/", kMostWidthsOfDirection,
                   " of it divides, such as 256, 1024, 4096 or 4544, not ", d);
  return absl::OkStatus();
}

PlantedMatrix PlantedTokens(const ModelConfig& config) {
  const int64_t r = DirectionsOf(config.hidden_size);
  return {.directions = r,
          .inside = static_cast<float>(std::sqrt(kTokenVariance)),
          .outside = static_cast<float>(kBeyond * std::sqrt(static_cast<double>(r)))};
}

PlantedMatrix PlantedPositions(const ModelConfig& config) {
  return {.directions = DirectionsOf(config.hidden_size), .inside = static_cast<float>(std::sqrt(kWalkVariance)), .walk = true};
}

PlantedMatrix PlantedFirst(const ModelConfig& config) {
  const int64_t r = DirectionsOf(config.hidden_size);
  const double scale = std::sqrt(static_cast<double>(r) / static_cast<double>(config.hidden_size));
  return {.directions = r, .inside = static_cast<float>(scale), .unit = true, .outside = static_cast<float>(scale * kPlantedStiffness)};
}

PlantedLayer PlantedLayerOf(const ModelConfig& config, int64_t layer) {
  const auto d = static_cast<double>(config.hidden_size), ffn = static_cast<double>(config.layer(layer).intermediate_size);
  const int64_t r = DirectionsOf(config.hidden_size), drawn = (r + 3) / 2 * 2;
  const Norms norms = NormsBefore(2 * layer + 1, static_cast<double>(r));
  std::vector<double> sums;  // of a neuron's product and g; it is active where they are above t
  std::vector<float> state(static_cast<size_t>(drawn));
  for (int64_t i = 0; i < kDrawnStates; ++i) {
    DrawNormals(kStatesKey, i * drawn, state);  // in U: the first one along c; then the products outside U, and g
    const double inside = std::inner_product(state.begin(), state.begin() + r, state.begin(), 0.0);
    const double normalised = std::sqrt(static_cast<double>(r) / (inside + norms.outside));
    const double outside = kPlantedStiffness * std::sqrt(norms.outside / d) * static_cast<double>(state[static_cast<size_t>(r)]);
    sums.push_back(normalised * (static_cast<double>(state[0]) + outside) +
                   kThresholdDeviation * static_cast<double>(state[static_cast<size_t>(r) + 1]));
  }
  const auto cut = sums.begin() + static_cast<int64_t>((1 - kPlantedActive) * static_cast<double>(kDrawnStates));
  std::ranges::nth_element(sums, cut);
  const double threshold = *cut;
  double squares = 0;  // of the activations
  for (const double sum : sums) squares += std::pow(std::max(0.0, sum - threshold), 2) / static_cast<double>(kDrawnStates);
  return {.threshold = static_cast<float>(threshold),
          .bias_deviation = static_cast<float>(kThresholdDeviation),
          .down_deviation = static_cast<float>(kAdded * std::sqrt(norms.all / (d * ffn * squares))),
          .out_deviation = static_cast<float>(kAdded * std::sqrt(NormsBefore(2 * layer, static_cast<double>(r)).all) / d)};
}

void FillPlanted(const PlantedMatrix& matrix, int64_t cols, DType dtype, uint64_t outside_key, uint64_t inside_key, int64_t first,
                 std::span<std::byte> out) {
  RowMaker rows(matrix, cols, outside_key, inside_key);
  const int64_t size = ElementBytes(dtype), end = first + std::ssize(out) / size;
  if (matrix.walk) {
    for (int64_t row = 0; row < first / cols; ++row) rows.NextCoordinates(row);
  }
  for (int64_t row = first / cols; row * cols < end; ++row) {
    const std::span<const float> values = rows.Make(row);
    for (int64_t i = std::max(first, row * cols); i < std::min(end, (row + 1) * cols); ++i)
      StoreFloat(dtype, values[static_cast<size_t>(i - row * cols)], out.data() + (i - first) * size);
  }
}

std::vector<float> PlantedCoordinates(std::span<const float> vector) {
  std::vector<float> sums = SumsOf(vector);
  const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(vector.size())));
  std::vector<float> coordinates(sums.begin() + 1, sums.begin() + 1 + DirectionsOf(std::ssize(vector)));
  for (float& coordinate : coordinates) coordinate *= factor;
  return coordinates;
}

}  // namespace lime
