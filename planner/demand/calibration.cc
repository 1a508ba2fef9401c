#include "planner/demand/calibration.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/bytes.h"
#include "planner/base/check.h"
#include "planner/demand/bundle_reads.h"
#include "planner/demand/neuron_path.h"
#include "planner/demand/sparse_mlp.h"

namespace lime {
namespace {

constexpr int64_t kPoints = 24;  // of a batch: replays with so many numbers of rows

int64_t Size(const std::vector<int32_t>& mask) {
  return std::ssize(mask);
}

// Steps of a sequence that fill the window.
size_t WarmUp(size_t steps) {
  return steps / 2;
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
    LIME_RETURN_IF_ERROR(MeasureWhole(out));
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

  absl::Status CheckGoesOn() const { return options_.ends() ? absl::CancelledError("interrupted") : absl::OkStatus(); }

  // Pieces do not depend on each other. The error of the first one in which work failed.
  absl::Status ForPieces(size_t count, const std::function<absl::Status(size_t piece)>& work) const {
    std::vector<absl::Status> of_pieces(count);
    std::atomic<bool> failed = false;
    options_.for_each(static_cast<int64_t>(count), [&](int64_t i) {
      if (failed) return;
      absl::Status& status = of_pieces[static_cast<size_t>(i)];
      status = CheckGoesOn();
      if (status.ok()) status = work(static_cast<size_t>(i));
      if (!status.ok()) failed = true;
    });
    for (absl::Status& status : of_pieces) LIME_RETURN_IF_ERROR(std::move(status));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> Unions() const {
    std::vector<std::vector<double>> of_sequences(sequences_.size());
    LIME_RETURN_IF_ERROR(ForPieces(sequences_.size(), [&](size_t i) -> absl::Status {
      if (sequences_[i].empty()) return absl::OkStatus();
      const auto most = std::min(options_.masks, static_cast<int32_t>(sequences_[i].size()));
      LIME_ASSIGN_OR_RETURN(of_sequences[i], UnionShares(sequences_[i], options_.neurons, most));
      return absl::OkStatus();
    }));
    std::vector<Mean> means(static_cast<size_t>(options_.masks));
    for (size_t sequence = 0; sequence < sequences_.size(); ++sequence) {
      const std::vector<double>& shares = of_sequences[sequence];
      for (size_t i = 0; i < shares.size(); ++i) {
        const auto runs = static_cast<int64_t>(sequences_[sequence].size() - i);
        means[i].Add(shares[i] * static_cast<double>(runs), runs);
      }
    }
    std::vector<double> unions;
    unions.reserve(means.size());
    for (const Mean& mean : means) {
      // The union of more masks than a sequence has is not known. It is at least that of fewer.
      unions.push_back(std::max(mean.Get(), unions.empty() ? 0.0 : unions.back()));
    }
    return unions;
  }

  // With the whole window, and memory for all neurons.
  absl::Status MeasureWhole(LayerCalibration& out) const {
    const WindowOptions whole{.neurons = options_.neurons, .rows = options_.neurons, .masks = options_.masks};
    std::vector<WindowLoads> of_sequences(sequences_.size());
    LIME_RETURN_IF_ERROR(ForPieces(sequences_.size(), [&](size_t i) -> absl::Status {
      LIME_ASSIGN_OR_RETURN(of_sequences[i], LoadsOf(sequences_[i], whole));
      return absl::OkStatus();
    }));
    Mean fresh;
    for (const WindowLoads& loads : of_sequences) {
      AddLoads(loads, fresh);
      out.rows_needed = std::max(out.rows_needed, loads.rows_needed);
    }
    out.fresh = fresh.Get();
    return absl::OkStatus();
  }

  // Adds to the mean share that a step loads.
  void AddLoads(const WindowLoads& loads, Mean& mean) const {
    const size_t first = WarmUp(loads.loads.size());
    const auto steps = static_cast<int64_t>(loads.loads.size() - first);
    mean.Add(loads.MeanShareFrom(first, options_.neurons) * static_cast<double>(steps), steps);
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
      LIME_RETURN_IF_ERROR(ForPieces(rows.size(), [&](size_t i) -> absl::Status {
        LIME_ASSIGN_OR_RETURN(const WindowLoads of_group,
                              LoadsOf(masks, {.neurons = options_.neurons, .rows = rows[i], .masks = kMostWindowMasks}));
        AddLoads(of_group, loads[i]);
        return absl::OkStatus();
      }));
    }
    BatchShares shares{.batch = batch, .active = active.Get() / static_cast<double>(options_.neurons)};
    double least = shares.active;
    for (size_t i = 0; i < rows.size(); ++i) {
      least = std::min(least, loads[i].Get());
      shares.points.push_back({.rows = rows[i], .loads = least});
    }
    return shares;
  }

  // The order of bundles, and how many new neurons of a step lie side by side with and without it.
  absl::Status FindPlaces(LayerCalibration& out) {
    out.places.assign(options_.places.begin(), options_.places.end());
    if (out.places.empty()) LIME_RETURN_IF_ERROR(FindPath(out));
    return MeasureReads(out);
  }

  absl::Status FindPath(LayerCalibration& out) {
    LIME_ASSIGN_OR_RETURN(out.places, PathPlaces(SampledMasks(sequences_), options_.neurons, options_.ends));
    return absl::OkStatus();
  }

  struct Reads {
    int64_t loads = 0, reads = 0, on_path = 0;
  };

  absl::Status MeasureReads(LayerCalibration& out) const {
    std::vector<Reads> of_sequences(sequences_.size());
    LIME_RETURN_IF_ERROR(ForPieces(sequences_.size(), [&](size_t i) -> absl::Status {
      LIME_ASSIGN_OR_RETURN(of_sequences[i], ReadsOf(sequences_[i], out.places));
      return absl::OkStatus();
    }));
    Reads all;
    for (const Reads& reads : of_sequences) all.loads += reads.loads, all.reads += reads.reads, all.on_path += reads.on_path;
    if (all.loads == 0) return absl::OkStatus();
    out.neurons_per_read = static_cast<double>(all.loads) / static_cast<double>(all.reads);
    out.path_neurons_per_read = static_cast<double>(all.loads) / static_cast<double>(all.on_path);
    return absl::OkStatus();
  }

  // Of the steps behind the warm-up: reads of neurons side by side.
  absl::StatusOr<Reads> ReadsOf(const SequenceMasks& sequence, std::span<const int32_t> place_of) const {
    const JoinOptions side_by_side{.bundle_bytes = 1, .gap_bytes = 0, .longest_bytes = options_.neurons};
    MaskWindow window({.neurons = options_.neurons, .rows = options_.neurons, .masks = options_.masks});
    Reads out;
    std::vector<int32_t> places;
    std::vector<BundleRead> reads;
    for (size_t step = 0; step < sequence.size(); ++step) {
      LIME_RETURN_IF_ERROR(window.BeginStep(sequence[step]));
      window.NextRound();
      if (step < WarmUp(sequence.size())) continue;
      places.clear();
      for (const int32_t neuron : window.coming()) places.push_back(place_of[static_cast<size_t>(neuron)]);
      std::ranges::sort(places);
      out.loads += std::ssize(places);
      JoinReads(window.coming(), side_by_side, reads);
      out.reads += std::ssize(reads);
      JoinReads(places, side_by_side, reads);
      out.on_path += std::ssize(reads);
    }
    return out;
  }

  const std::span<const SequenceMasks> sequences_;
  const CalibrateOptions& options_;
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

const CopiedLayer* CopyOfLayer(const Calibration& calibration, int32_t layer) {
  const auto found = std::ranges::find(calibration.copies, layer, [](const CopiedLayer& copy) { return copy.unproven.layer; });
  return found == calibration.copies.end() ? nullptr : &*found;
}

const ProvenShare* BestCopy(std::span<const ProvenShare> proofs, int64_t cols) {
  constexpr double kMostUnproven = 0.5, kMore = 1.25, kAlways = 0.01;
  double least = 1;
  for (const ProvenShare& share : proofs) least = std::min(least, 1 - share.proven);
  if (least > kMostUnproven) return nullptr;
  const ProvenShare* best = nullptr;
  const auto bytes = [cols](const ProvenShare& share) { return CopyBytes(1, cols, share.bits, share.directions); };
  for (const ProvenShare& share : proofs) {
    if (1 - share.proven <= kMore * least + kAlways && (best == nullptr || bytes(share) < bytes(*best))) best = &share;
  }
  return best;
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

double WindowLoadShare(const LayerCalibration& layer, int64_t rows, int64_t masks, int64_t batch) {
  LIME_CHECK(masks >= 1) << masks;
  const double by_rows = LoadShare(layer, rows, batch);
  if (masks >= std::ssize(layer.unions)) return by_rows;
  const auto outside = [&](int64_t count) {  // of so many masks of every sequence
    return std::pow(1 - layer.unions[static_cast<size_t>(count - 1)], static_cast<double>(batch));
  };
  return std::min(ActiveShare(layer, batch), std::max(by_rows, outside(masks) - outside(masks + 1)));
}

absl::Status CheckCalibrationBytes(std::span<const int64_t> neurons, const CalibrateOptions& options) {
  constexpr Bytes kHead = 4096, kOfLayer = 512, kOfBatch = 128;                 // names, and numbers of which there is one
  constexpr Bytes kShare = 25, kPoint = kShare + 16, kProof = 64 + 2 * kShare;  // as text, with what is between two
  const Bytes shares = kOfLayer + options.masks * kShare + std::ssize(options.batches) * (kOfBatch + static_cast<Bytes>(kPoints) * kPoint);
  const Bytes without_places = 2 * shares + static_cast<Bytes>(kMostProofs) * kProof;  // with those of a copy
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
  LIME_CHECK(options.places.empty() || std::ssize(options.places) == options.neurons) << options.places.size();
  for (const SequenceMasks& sequence : sequences) {
    for (const std::vector<int32_t>& mask : sequence) LIME_RETURN_IF_ERROR(CheckAscending(mask, options.neurons));
  }
  return Measurement(sequences, options).Run(layer);
}

}  // namespace lime
