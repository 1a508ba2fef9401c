#include "testbed/make_model/planted_statistics.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "daemon/stores/float_codec.h"
#include "planner/base/check.h"
#include "planner/base/random.h"
#include "planner/demand/mask_statistics.h"
#include "testbed/make_model/planted_neurons.h"

namespace lime {
namespace {

constexpr int64_t kMostNeurons = 2048, kMostPositions = 160;
constexpr int64_t kPositionOffset = 2;  // of OPT's table
constexpr double kMissed = 0.05;        // of the active neurons, by the predictor
constexpr int32_t kWindow = 5;

const RandomTensor& Find(std::span<const RandomTensor> tensors, std::string_view end) {
  const auto found = std::ranges::find_if(tensors, [&](const RandomTensor& tensor) { return tensor.name.ends_with(end); });
  LIME_CHECK(found != tensors.end()) << end;
  return *found;
}

// Row `row` of a matrix, or a whole vector, as it is stored.
std::vector<float> RowOf(const RandomTensor& tensor, uint64_t seed, int64_t row) {
  const int64_t cols = tensor.shape.back(), size = ElementBytes(tensor.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(cols * size));
  FillRandom(tensor, seed, row * cols, bytes);
  std::vector<float> values;
  for (int64_t i = 0; i < cols; ++i) values.push_back(LoadFloat(tensor.dtype, bytes.data() + i * size));
  return values;
}

// In eight sums, which a compiler adds side by side.
float Dot(std::span<const float> a, std::span<const float> b) {
  float sums[8] = {};
  for (size_t i = 0; i + 8 <= a.size(); i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float sum = 0;
  for (const float lane : sums) sum += lane;
  for (size_t i = a.size() / 8 * 8; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The input of the first layer's fc1 at a position.
std::vector<float> Normalised(std::vector<float> x, const std::vector<float>& position) {
  double mean = 0, squares = 0;
  for (size_t i = 0; i < x.size(); ++i) mean += static_cast<double>(x[i] += position[i]) / static_cast<double>(x.size());
  for (float& value : x) value -= static_cast<float>(mean), squares += static_cast<double>(value) * static_cast<double>(value);
  for (float& value : x) value *= static_cast<float>(std::sqrt(static_cast<double>(x.size()) / squares));
  return x;
}

// Of all neurons at all positions, position by position: what fc1 gives, and what of it a predictor sees.
struct Products {
  int64_t neurons = 0;
  std::vector<float> whole, seen;
};

Products Multiply(std::span<const RandomTensor> tensors, uint64_t seed) {
  const RandomTensor& tokens = Find(tensors, "embed_tokens.weight");
  const RandomTensor& positions = Find(tensors, "embed_positions.weight");
  const RandomTensor& first = Find(tensors, "layers.0.fc1.weight");
  const std::vector<float> biases = RowOf(Find(tensors, "layers.0.fc1.bias"), seed, 0);
  Products products{.neurons = std::min(kMostNeurons, first.shape[0])};
  std::vector<std::vector<float>> rows, coordinates;
  for (int64_t neuron = 0; neuron < products.neurons; ++neuron) {
    rows.push_back(RowOf(first, seed, neuron));
    coordinates.push_back(PlantedCoordinates(rows.back()));
  }
  Random random(seed);
  for (int64_t at = 0; at < std::min(kMostPositions, positions.shape[0] - kPositionOffset); ++at) {
    const int64_t token = random.Below(static_cast<int>(tokens.shape[0]));
    const std::vector<float> x = Normalised(RowOf(tokens, seed, token), RowOf(positions, seed, at + kPositionOffset));
    const std::vector<float> inside = PlantedCoordinates(x);
    for (size_t neuron = 0; neuron < rows.size(); ++neuron) {
      products.whole.push_back(Dot(rows[neuron], x) + biases[neuron]);
      products.seen.push_back(Dot(coordinates[neuron], inside) + biases[neuron]);
    }
  }
  return products;
}

absl::StatusOr<MaskShares> SharesOf(std::span<const float> values, float above, int64_t neurons) {
  std::vector<std::vector<int32_t>> masks(values.size() / static_cast<size_t>(neurons));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] > above) masks[i / static_cast<size_t>(neurons)].push_back(static_cast<int32_t>(i % static_cast<size_t>(neurons)));
  }
  LIME_ASSIGN_OR_RETURN(const std::vector<double> unions, UnionShares(masks, static_cast<int32_t>(neurons), kWindow + 1));
  return MaskShares{.one = unions[0], .five = unions[kWindow - 1], .fresh = unions[kWindow] - unions[kWindow - 1]};
}

}  // namespace

absl::StatusOr<PlantedStatistics> MeasurePlantedNeurons(std::span<const RandomTensor> tensors, uint64_t seed) {
  const Products products = Multiply(tensors, seed);
  std::vector<float> seen;  // of active neurons
  for (size_t i = 0; i < products.whole.size(); ++i) {
    if (products.whole[i] > 0) seen.push_back(products.seen[i]);
  }
  if (seen.empty()) return absl::InternalError("no planted neuron is active");
  const auto cut = seen.begin() + static_cast<int64_t>(kMissed * static_cast<double>(seen.size()));
  std::ranges::nth_element(seen, cut);
  PlantedStatistics statistics;
  LIME_ASSIGN_OR_RETURN(statistics.active, SharesOf(products.whole, 0, products.neurons));
  LIME_ASSIGN_OR_RETURN(statistics.predicted, SharesOf(products.seen, *cut, products.neurons));
  int64_t idle = 0, wrong = 0;
  for (size_t i = 0; i < products.whole.size(); ++i) {
    if (products.whole[i] > 0) continue;
    ++idle;
    wrong += products.seen[i] > *cut;
  }
  statistics.false_positives = static_cast<double>(wrong) / static_cast<double>(idle);
  return statistics;
}

std::string StatisticsText(const PlantedStatistics& statistics) {
  const auto line = [](std::string_view what, double share, std::string_view paper) {
    return absl::StrFormat("%-46s %5.1f %%   paper %s\n", what, 100 * share, paper);
  };
  return line("active neurons", statistics.active.one, "3 %") + line("  in 5 tokens", statistics.active.five, "-") +
         line("  new in a token, window of 5", statistics.active.fresh, "-") +
         line("predicted, 5 % of the active missed", statistics.predicted.one, "9.6 %") +
         line("  of those that are not active", statistics.false_positives, "7 %") +
         line("  in 5 tokens", statistics.predicted.five, "24 %") +
         line("  new in a token, window of 5", statistics.predicted.fresh, "2.4 %");
}

}  // namespace lime
