#include "bench/flash/masks.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "daemon/calibration/mask_run.h"
#include "daemon/calibration/predictor_trial.h"
#include "daemon/calibration/proven_shares.h"
#include "daemon/stores/float_codec.h"
#include "daemon/weights/weight_store.h"
#include "planner/base/check.h"
#include "testbed/make_model/planted_neurons.h"

namespace lime::flash {
namespace {

constexpr double kMissed = 0.05;             // of the active neurons, by the predictor
constexpr double kMostFalsePositives = 0.3;  // of a model with planted neurons; others have far more

std::vector<float> FloatsOf(DType dtype, const std::byte* data, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = LoadFloat(dtype, data + i * ElementBytes(dtype));
  return values;
}

// In eight sums, which a compiler adds side by side.
float DotOf(std::span<const float> a, std::span<const float> b) {
  float sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= a.size(); i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float sum = std::accumulate(std::begin(sums), std::end(sums), 0.0f);
  for (; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Norms of a planted model do nothing else than normalise.
void Normalise(std::span<float> x) {
  const double count = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / count;
  double squares = 0;
  for (float& value : x) value -= static_cast<float>(mean), squares += static_cast<double>(value) * static_cast<double>(value);
  const auto scale = static_cast<float>(squares > 0 ? std::sqrt(count / squares) : 0);
  for (float& value : x) value *= scale;
}

// The predictor of one layer, and what it gives for each token.
class Predictor {
 public:
  Predictor(const Checkpoint& checkpoint, const ModelSpec& spec, WeightStore& store)
      : checkpoint_(checkpoint), spec_(spec), store_(store) {}

  // Takes the inputs of a layer for the next rows.
  void Take(int64_t rows, std::span<const std::byte> stream) {
    const int64_t width = spec_.config.hidden_size, bytes = width * ElementBytes(spec_.working_dtype);
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<float> x = FloatsOf(spec_.working_dtype, stream.data() + row * bytes, width);
      Normalise(x);
      inputs_.push_back(PlantedCoordinates(x));
    }
  }

  // The masks of the inputs that were taken, which are then forgotten. The threshold misses 5 % of
  // the active neurons of the first `learn` tokens.
  absl::StatusOr<TokenMasks> Predict(int32_t layer, const TokenMasks& active, size_t learn) {
    LIME_RETURN_IF_ERROR(Load(layer));
    std::vector<float> seen;  // of active neurons
    for (size_t token = 0; token < learn; ++token) {
      for (const int32_t neuron : active[token]) seen.push_back(ScoreOf(token, static_cast<size_t>(neuron)));
    }
    if (seen.empty()) return Invalid(checkpoint_.dir(), ": no neuron of layer ", layer, " is active; give more tokens");
    const auto cut = seen.begin() + static_cast<int64_t>(kMissed * static_cast<double>(seen.size()));
    std::ranges::nth_element(seen, cut);
    const float threshold = *cut;
    TokenMasks masks(active.size());
    for (size_t token = 0; token < active.size(); ++token) {
      for (size_t neuron = 0; neuron < rows_.size(); ++neuron) {
        if (ScoreOf(token, neuron) > threshold) masks[token].push_back(static_cast<int32_t>(neuron));
      }
    }
    inputs_.clear();
    return masks;
  }

 private:
  float ScoreOf(size_t token, size_t neuron) const { return DotOf(rows_[neuron], inputs_[token]) + biases_[neuron]; }

  absl::Status Load(int32_t layer) {
    const BlockId id = MlpBlockOf(spec_.config, layer);
    LIME_ASSIGN_OR_RETURN(const std::vector<LoadedBlock> loaded, store_.LoadBlocks(std::span(&id, 1)));
    rows_.clear(), biases_.clear();
    for (const LoadedTensor& tensor : loaded.front().tensors) {
      if (tensor.role != TensorRole::kUp) continue;
      if (tensor.part == TensorPart::kBias) biases_ = FloatsOf(tensor.dtype, tensor.data, tensor.shape.front());
      if (tensor.part != TensorPart::kWeight) continue;
      const int64_t width = tensor.shape.back();
      for (int64_t row = 0; row < tensor.shape.front(); ++row)
        rows_.push_back(PlantedCoordinates(FloatsOf(tensor.dtype, tensor.data + row * width * ElementBytes(tensor.dtype), width)));
    }
    if (rows_.empty() || biases_.size() != rows_.size())
      return Invalid(checkpoint_.dir(), ": layer ", layer, " has no dense first projection with biases, as planted models have");
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  WeightStore& store_;
  std::vector<std::vector<float>> inputs_;  // by token: coordinates
  std::vector<std::vector<float>> rows_;    // by neuron: coordinates
  std::vector<float> biases_;
};

}  // namespace

int64_t PredictorRank(const ModelSpec& spec) {
  return std::ssize(PlantedCoordinates(std::vector<float>(static_cast<size_t>(spec.config.hidden_size))));
}

Bytes PredictorBytes(const ModelSpec& spec, int64_t rank) {
  const int64_t wide = spec.config.hidden_size + spec.config.layer(0).intermediate_size;
  return rank * wide * ElementBytes(spec.working_dtype);
}

MaskShares SharesOf(std::span<const LayerMasks> layers, size_t first) {
  int64_t all = 0, active = 0, unproven = 0, predicted = 0, both = 0;
  for (const LayerMasks& layer : layers) {
    for (size_t token = first; token < layer.active.size(); ++token) {
      all += layer.neurons;
      active += std::ssize(layer.active[token]);
      if (!layer.unproven.empty()) unproven += std::ssize(layer.unproven[token]);
      if (layer.predicted.empty()) continue;
      predicted += std::ssize(layer.predicted[token]);
      both += std::ranges::count_if(layer.predicted[token],
                                    [&](int32_t neuron) { return std::ranges::binary_search(layer.active[token], neuron); });
    }
  }
  const auto share = [](int64_t part, int64_t whole) { return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0; };
  if (predicted == 0) return {.active = share(active, all), .unproven = share(unproven, all)};
  return {.active = share(active, all),
          .predicted = share(predicted, all),
          .unproven = share(unproven, all),
          .missed = share(active - both, active),
          .false_positives = share(predicted - both, all - active)};
}

namespace {

absl::StatusOr<std::vector<LayerMasks>> MasksOfTrained(const Checkpoint& checkpoint, const ModelSpec& spec, const std::vector<int32_t>& ids,
                                                       const MaskOptions& options) {
  TokenMasks predicted;  // of the layer at work
  const auto take_inputs = [&](const LayerInputs& inputs) -> absl::Status {
    if (options.trained->RankOf(inputs.layer) == 0) return absl::OkStatus();
    LIME_ASSIGN_OR_RETURN(const auto loaded, options.trained->Load(inputs.layer));
    LIME_ASSIGN_OR_RETURN(predicted, PredictedMasks(inputs, loaded->view, spec.working_dtype, options.num_threads, "auto"));
    return absl::OkStatus();
  };
  const MaskRunOptions run{.num_threads = options.num_threads,
                           .progress = options.progress,
                           .most_inputs = std::ssize(ids),
                           .take_inputs = take_inputs,
                           .cancelled = options.cancelled};
  std::vector<LayerMasks> layers;
  const std::vector<std::vector<int32_t>> sequences = {ids};
  LIME_RETURN_IF_ERROR(RunForMasks(
      checkpoint, spec, sequences, run, [&](int32_t layer, int32_t neurons, std::span<const SequenceMasks> masks) -> absl::Status {
        if (predicted.empty()) return Invalid(options.trained->path(), ": has no predictor of layer ", layer, "; use --masks active");
        layers.push_back({.layer = layer, .neurons = neurons, .active = masks.front(), .predicted = std::exchange(predicted, {})});
        return absl::OkStatus();
      }));
  return layers;
}

}  // namespace

absl::StatusOr<std::vector<LayerMasks>> MasksOf(const Checkpoint& checkpoint, const ModelSpec& spec, const std::vector<int32_t>& ids,
                                                const MaskOptions& options) {
  LIME_CHECK(options.learn > 0 && options.learn < std::ssize(ids)) << options.learn;
  if (options.predict && options.trained != nullptr) return MasksOfTrained(checkpoint, spec, ids, options);
  if (options.predict) LIME_RETURN_IF_ERROR(CheckPlantedNeurons(spec.config));
  LIME_ASSIGN_OR_RETURN(const auto store, WeightStore::Open(checkpoint, spec, {.loader = LoaderKind::kRead}));
  Predictor predictor(checkpoint, spec, *store);
  MaskRunOptions run{.num_threads = options.num_threads, .progress = options.progress, .cancelled = options.cancelled};
  if (options.predict)
    run.inputs = [&](int32_t /*layer*/, size_t /*sequence*/, int64_t /*first*/, int64_t rows, std::span<const std::byte> stream) {
      predictor.Take(rows, stream);
    };
  std::vector<LayerMasks> layers;
  TokenMasks unproven;  // of the next layer
  if (options.bundles != nullptr) {
    run.last_from = options.learn;
    run.take_inputs = [&](const LayerInputs& inputs) -> absl::Status {
      const LayerBundles* const bundles = options.bundles->OfLayer(inputs.layer);
      if (bundles == nullptr || bundles->decider() == nullptr || inputs.last_masks.empty()) return absl::OkStatus();
      LIME_ASSIGN_OR_RETURN(const auto copy, bundles->LoadDecider());
      LIME_ASSIGN_OR_RETURN(std::vector<SequenceMasks> last, UnprovenMasks(inputs, copy->view, options.num_threads));
      unproven.assign(static_cast<size_t>(options.learn), {});
      unproven.insert(unproven.end(), last.front().begin(), last.front().end());
      return absl::OkStatus();
    };
  }
  const std::vector<std::vector<int32_t>> sequences = {ids};
  LIME_RETURN_IF_ERROR(RunForMasks(
      checkpoint, spec, sequences, run, [&](int32_t layer, int32_t neurons, std::span<const SequenceMasks> masks) -> absl::Status {
        layers.push_back({.layer = layer, .neurons = neurons, .active = masks.front(), .unproven = std::exchange(unproven, {})});
        if (!options.predict) return absl::OkStatus();
        LIME_ASSIGN_OR_RETURN(layers.back().predicted, predictor.Predict(layer, masks.front(), static_cast<size_t>(options.learn)));
        return absl::OkStatus();
      }));
  if (!options.predict) return layers;
  const double wrong = SharesOf(layers, static_cast<size_t>(options.learn)).false_positives;
  if (wrong > kMostFalsePositives)
    return Invalid(checkpoint.dir(), ": a predictor for planted neurons names ", static_cast<int>(100 * wrong),
                   " % of those that are not active, so this model has none; use --masks active");
  return layers;
}

}  // namespace lime::flash
