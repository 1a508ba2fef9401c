#include "planner/demand/calibration.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "planner/base/bytes.h"
#include "planner/base/check.h"
#include "planner/demand/bundle_reads.h"
#include "planner/demand/neuron_path.h"

namespace lime {
namespace {

constexpr int64_t kPoints = 24;                      // of a batch: replays with so many numbers of rows
constexpr int64_t kMostPathWork = int64_t{1} << 31;  // sum of the squares of the masks' sizes

int64_t Size(const std::vector<int32_t>& mask) {
  return std::ssize(mask);
}

// Steps of a sequence that fill the window.
size_t WarmUp(const SequenceMasks& sequence) {
  return sequence.size() / 2;
}

// ---- Measured from masks

// The unions of sequences that share steps, as long as all of them go on.
SequenceMasks UnionOf(std::span<const SequenceMasks> together) {
  SequenceMasks unions;
  const size_t steps = std::ranges::min(together, {}, &SequenceMasks::size).size();
  for (size_t step = 0; step < steps; ++step) {
    std::vector<int32_t> all;
    for (const SequenceMasks& sequence : together) all.insert(all.end(), sequence[step].begin(), sequence[step].end());
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    unions.push_back(std::move(all));
  }
  return unions;
}

// From 1 to all neurons, closer to each other for few rows.
std::vector<int32_t> RowsOfPoints(int64_t neurons) {
  std::vector<int32_t> rows;
  for (int64_t i = 1; i <= kPoints; ++i) {
    const auto n = static_cast<int32_t>(std::max<int64_t>(1, neurons * i * i / (kPoints * kPoints)));
    if (rows.empty() || n > rows.back()) rows.push_back(n);
  }
  return rows;
}

// A mean over steps.
struct Mean {
  double sum = 0;
  int64_t count = 0;
  void Add(double total, int64_t steps) { sum += total, count += steps; }
  double Get() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
};

class Measurement {
 public:
  Measurement(std::span<const SequenceMasks> sequences, const CalibrateOptions& options) : sequences_(sequences), options_(options) {}

  absl::StatusOr<LayerCalibration> Run(int32_t layer) {
    LayerCalibration out{.layer = layer, .neurons = options_.neurons};
    LIME_ASSIGN_OR_RETURN(out.unions, Unions());
    const WindowOptions whole{.neurons = options_.neurons, .rows = options_.neurons, .masks = options_.masks};
    Mean fresh;
    for (const SequenceMasks& sequence : sequences_) LIME_RETURN_IF_ERROR(AddLoads(sequence, whole, fresh, &out.rows_needed));
    out.fresh = fresh.Get();
    for (const int32_t batch : options_.batches) {
      if (batch > std::ssize(sequences_)) break;
      LIME_ASSIGN_OR_RETURN(BatchShares shares, Batch(batch));
      out.batches.push_back(std::move(shares));
    }
    LIME_RETURN_IF_ERROR(FindPlaces(out));
    return out;
  }

 private:
  using WindowOptions = MaskWindow::Options;

  absl::StatusOr<std::vector<double>> Unions() {
    std::vector<Mean> means(static_cast<size_t>(options_.masks));
    for (const SequenceMasks& sequence : sequences_) {
      if (sequence.empty()) continue;
      const auto most = std::min(options_.masks, static_cast<int32_t>(sequence.size()));
      LIME_ASSIGN_OR_RETURN(const std::vector<double> shares, UnionShares(sequence, options_.neurons, most));
      for (size_t i = 0; i < shares.size(); ++i) {
        const auto runs = static_cast<int64_t>(sequence.size() - i);
        means[i].Add(shares[i] * static_cast<double>(runs), runs);
      }
    }
    std::vector<double> unions;
    for (const Mean& mean : means) {
      // The union of more masks than a sequence has is not known. It is at least that of fewer.
      unions.push_back(std::max(mean.Get(), unions.empty() ? 0.0 : unions.back()));
    }
    return unions;
  }

  // Adds to the mean share that a step loads. `needed`: the largest union of a window; may be null.
  absl::Status AddLoads(const SequenceMasks& sequence, const WindowOptions& window, Mean& mean, int32_t* needed) const {
    LIME_ASSIGN_OR_RETURN(const WindowLoads loads, LoadsOf(sequence, window));
    const size_t first = WarmUp(sequence);
    const auto steps = static_cast<int64_t>(sequence.size() - first);
    mean.Add(loads.MeanShareFrom(first, options_.neurons) * static_cast<double>(steps), steps);
    if (needed != nullptr) *needed = std::max(*needed, loads.rows_needed);
    return absl::OkStatus();
  }

  // Of neighbouring sequences. The unions of one group at a time are in memory.
  absl::StatusOr<BatchShares> Batch(int32_t batch) const {
    const auto group = static_cast<size_t>(batch);
    const std::vector<int32_t> rows = RowsOfPoints(options_.neurons);
    Mean active;
    std::vector<Mean> loads(rows.size());
    for (size_t first = 0; first + group <= sequences_.size(); first += group) {
      const SequenceMasks unions = group == 1 ? SequenceMasks() : UnionOf(sequences_.subspan(first, group));
      const SequenceMasks& masks = group == 1 ? sequences_[first] : unions;
      for (const std::vector<int32_t>& mask : masks) active.Add(static_cast<double>(Size(mask)), 1);
      for (size_t i = 0; i < rows.size(); ++i) {
        const WindowOptions window{.neurons = options_.neurons, .rows = rows[i], .masks = kMostWindowMasks};
        LIME_RETURN_IF_ERROR(AddLoads(masks, window, loads[i], nullptr));
      }
    }
    BatchShares shares{.batch = batch, .active = active.Get() / static_cast<double>(options_.neurons)};
    double least = shares.active;
    for (size_t i = 0; i < rows.size(); ++i) {
      least = std::min(least, loads[i].Get());
      shares.points.push_back({.rows = rows[i], .loads = least});
    }
    return shares;
  }

  // The path, and how many new neurons of a step lie side by side with and without it.
  absl::Status FindPlaces(LayerCalibration& out) {
    int64_t work = 0;
    for (const SequenceMasks& sequence : sequences_) {
      for (const std::vector<int32_t>& mask : sequence) work += Size(mask) * Size(mask);
    }
    const int64_t stride = 1 + work / kMostPathWork;  // every so many-th mask
    std::vector<std::vector<int32_t>> sample;
    int64_t at = 0;
    for (const SequenceMasks& sequence : sequences_) {
      for (const std::vector<int32_t>& mask : sequence) {
        if (at++ % stride == 0) sample.push_back(mask);
      }
    }
    LIME_ASSIGN_OR_RETURN(out.places, PathPlaces(sample, options_.neurons));
    int64_t loads = 0, reads = 0, reads_on_path = 0;
    for (const SequenceMasks& sequence : sequences_) {
      MaskWindow window({.neurons = options_.neurons, .rows = options_.neurons, .masks = options_.masks});
      const size_t first = WarmUp(sequence);
      for (size_t step = 0; step < sequence.size(); ++step) {
        LIME_RETURN_IF_ERROR(window.BeginStep(sequence[step]));
        window.NextRound();
        if (step < first) continue;
        std::vector<int32_t> places;
        for (const int32_t neuron : window.coming()) places.push_back(out.places[static_cast<size_t>(neuron)]);
        std::ranges::sort(places);
        loads += std::ssize(places);
        reads += ReadsOf(window.coming());
        reads_on_path += ReadsOf(places);
      }
    }
    if (loads == 0) return absl::OkStatus();
    out.neurons_per_read = static_cast<double>(loads) / static_cast<double>(reads);
    out.path_neurons_per_read = static_cast<double>(loads) / static_cast<double>(reads_on_path);
    return absl::OkStatus();
  }

  // Of neurons side by side.
  int64_t ReadsOf(std::span<const int32_t> places) {
    JoinReads(places, {.bundle_bytes = 1, .gap_bytes = 0, .longest_bytes = options_.neurons}, reads_);
    return std::ssize(reads_);
  }

  const std::span<const SequenceMasks> sequences_;
  const CalibrateOptions& options_;
  std::vector<BundleRead> reads_;
};

double Between(double low, double high, double low_value, double high_value, double at) {
  return low_value + (high_value - low_value) * (at - low) / (high - low);
}

double LoadsWith(const BatchShares& shares, int64_t rows) {
  LoadPoint before{.rows = 0, .loads = shares.active};
  for (const LoadPoint& point : shares.points) {
    if (rows < point.rows) return Between(before.rows, point.rows, before.loads, point.loads, static_cast<double>(rows));
    before = point;
  }
  return before.loads;
}

// What `value` gives for a batch, between those that were measured. `independent`: for a batch larger
// than all of them, from the value of the largest one and the quotient of their sizes.
template <typename Value, typename Independent>
double AtBatch(const LayerCalibration& layer, int64_t batch, const Value& value, const Independent& independent) {
  LIME_CHECK(batch >= 1 && !layer.batches.empty()) << batch;
  const BatchShares* before = &layer.batches.front();
  for (const BatchShares& shares : layer.batches) {
    if (batch <= shares.batch && before == &shares) return value(shares);
    if (batch <= shares.batch) return Between(before->batch, shares.batch, value(*before), value(shares), static_cast<double>(batch));
    before = &shares;
  }
  return independent(*before, static_cast<double>(batch) / before->batch);
}

}  // namespace

const LayerCalibration* OfLayer(const Calibration& calibration, int32_t layer) {
  const auto found = std::ranges::find(calibration.layers, layer, &LayerCalibration::layer);
  return found == calibration.layers.end() ? nullptr : &*found;
}

double ActiveShare(const LayerCalibration& layer, int64_t batch) {
  return AtBatch(
      layer, batch, [](const BatchShares& shares) { return shares.active; },
      [](const BatchShares& shares, double times) { return 1 - std::pow(1 - shares.active, times); });
}

double LoadShare(const LayerCalibration& layer, int64_t rows, int64_t batch) {
  return AtBatch(
      layer, batch, [rows](const BatchShares& shares) { return LoadsWith(shares, rows); },
      [rows](const BatchShares& shares, double times) {
        const double held = shares.active - LoadsWith(shares, rows);
        return std::max(0.0, 1 - std::pow(1 - shares.active, times) - held);
      });
}

absl::Status CheckCalibrationBytes(std::span<const int64_t> neurons, const CalibrateOptions& options) {
  constexpr Bytes kHead = 4096, kOfLayer = 512, kOfBatch = 128;  // names, and numbers of which there is one
  constexpr Bytes kShare = 25, kPoint = kShare + 16;             // as text, with what is between two
  const Bytes without_places =
      kOfLayer + options.masks * kShare + std::ssize(options.batches) * (kOfBatch + static_cast<Bytes>(kPoints) * kPoint);
  Bytes bytes = kHead;
  int64_t all = 0;
  for (const int64_t of_layer : neurons) {
    bytes += without_places + of_layer * static_cast<Bytes>(absl::StrCat(of_layer, ",").size());
    all += of_layer;
  }
  if (bytes <= kMostCalibrationBytes) return absl::OkStatus();
  return Invalid("calibration: the file of ", neurons.size(), " layers with ", all, " neurons in all may have ", FormatBytes(bytes),
                 ", supported are ", FormatBytes(kMostCalibrationBytes), "; such a model cannot be calibrated");
}

absl::StatusOr<LayerCalibration> CalibrateLayer(int32_t layer, std::span<const SequenceMasks> sequences, const CalibrateOptions& options) {
  LIME_RETURN_IF_ERROR(MaskWindow::Check({.neurons = options.neurons, .rows = options.neurons, .masks = options.masks}));
  if (options.batches.empty() || options.batches.front() != 1 || options.batches.back() > kMostCalibrationBatch ||
      std::ranges::adjacent_find(options.batches, std::greater_equal()) != options.batches.end())
    return Invalid("calibration: batches begin with 1 and ascend to at most ", kMostCalibrationBatch);
  if (std::ranges::none_of(sequences, [](const SequenceMasks& sequence) { return sequence.size() >= 2; }))
    return Invalid("calibration: no sequence has 2 tokens; give a longer text");
  for (const SequenceMasks& sequence : sequences) {
    for (const std::vector<int32_t>& mask : sequence) LIME_RETURN_IF_ERROR(CheckAscending(mask, options.neurons));
  }
  return Measurement(sequences, options).Run(layer);
}

}  // namespace lime
