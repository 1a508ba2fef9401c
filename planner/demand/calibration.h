// What a run over text says of the sparse MLPs of a model: which share of its neurons is active, how
// many of them are new, and where they should lie in the file of their layer. `lime calibrate` makes
// it, `lime prepare --bundles` orders bundles with it, and plans with sparse MLPs are made with it
// (planner/neuron_places.h).
//
// A neuron row is memory for one neuron. A batch is a number of unrelated sequences that share steps.
// All counts come from MaskWindow, the code of a device.
//
// The file is one JSON object with "lime_calibration": its version. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/for_each.h"
#include "planner/base/status.h"
#include "planner/demand/mask_statistics.h"

namespace lime {

// Bounds of a calibration.
inline constexpr int32_t kMostCalibrationBatch = 64;
inline constexpr int64_t kMostCalibrationBytes = int64_t{32} << 20;  // of a file; one of OPT-175B takes 29 MB
inline constexpr size_t kMostLoadPoints = 256;                       // of a batch
inline constexpr size_t kMostProofs = 16;                            // of a layer

// Mean share of the neurons that a step loads with so many neuron rows, which alone bound the window:
// it has as many masks as fit.
struct LoadPoint {
  int32_t rows = 0;
  double loads = 0;
  friend bool operator==(const LoadPoint&, const LoadPoint&) = default;
};

struct BatchShares {
  int32_t batch = 1;
  double active = 0;              // mean share of the neurons that are active for any sequence
  std::vector<LoadPoint> points;  // rows ascend, from 1 to all neurons; loads do not increase
  friend bool operator==(const BatchShares&, const BatchShares&) = default;
};

// What a low-bit copy of the decider proves (common/proven_zeros), of all neurons of all tokens.
struct ProvenShare {
  int bits = 0;  // of a code
  int32_t directions = 0;
  double zeros = 0;   // mean share of the neurons that are zero
  double proven = 0;  // mean share of the neurons that are proven to be zero; the others are computed
  friend bool operator==(const ProvenShare&, const ProvenShare&) = default;
};

struct LayerCalibration {
  int32_t layer = 0;
  int32_t neurons = 0;
  std::vector<double> unions;        // entry k - 1: mean share of the neurons in k masks, s_agg(k) of the paper
  double fresh = 0;                  // mean share that a step loads with the window of all these masks
  int32_t rows_needed = 0;           // the largest union of such a window
  double neurons_per_read = 1;       // of its loads, those that lie side by side in the order of their numbers
  double path_neurons_per_read = 1;  // in the order of `places`
  std::vector<BatchShares> batches;  // ascending; the first one has batch 1
  std::vector<int32_t> places;       // by neuron: its place on the path (neuron_path.h)
  std::vector<ProvenShare> proofs;   // of some forms of a copy; empty if the decider can have none
  friend bool operator==(const LayerCalibration&, const LayerCalibration&) = default;
};

// What a step computes of a layer that a copy of its decider decides: neurons that are not proven to be
// zero. The copy was made with the frame of the layer in the file of frames (daemon/calibration).
struct CopiedLayer {
  int bits = 0;
  int32_t directions = 0;
  LayerCalibration unproven;  // `active`: not proven. In the order of the layer's places; without its own
  friend bool operator==(const CopiedLayer&, const CopiedLayer&) = default;
};

struct Calibration {
  std::string model;                     // its key, as in logs of routes
  std::string text_xxh3;                 // of the token ids, 16 hexadecimal digits
  int64_t tokens = 0;                    // whose masks count
  int32_t context = 0;                   // tokens of a sequence
  int32_t masks = 0;                     // of the window; unions have as many entries
  std::vector<LayerCalibration> layers;  // ascending
  std::vector<CopiedLayer> copies;       // of some of these layers, ascending
  std::string frames_xxh3;               // of the file of frames, 16 hexadecimal digits; empty without copies
  friend bool operator==(const Calibration&, const Calibration&) = default;
};

// Null if the layer has none.
const LayerCalibration* OfLayer(const Calibration& calibration, int32_t layer);
const CopiedLayer* CopyOfLayer(const Calibration& calibration, int32_t layer);

// The form of the copy that a layer should have: of those that leave the fewest neurons without a proof,
// or few more, the one with the fewest bytes. Null if every form leaves most neurons.
//
// Reading: a quarter more neurons, and one in a hundred of all, are worth less than the memory that a
// smaller copy leaves to rows of neurons.  `cols`: of the decider
const ProvenShare* BestCopy(std::span<const ProvenShare> proofs, int64_t cols);

// Mean shares of the neurons for a batch of 1 to the largest one measured: linear between two that
// were measured. A larger one counts as if its sequences were independent of each other, and finds no
// more neurons in memory than the largest one measured.
// REQUIRES: the layer is of a calibration that was parsed or made here; batch >= 1
double ActiveShare(const LayerCalibration& layer, int64_t batch);
// What a step loads with so many neuron rows: linear between two points; without rows all that is
// active.
double LoadShare(const LayerCalibration& layer, int64_t rows, int64_t batch);
// The same with a window of at most `masks` masks, even where memory has room for more: at least
// s_agg(masks + 1) - s_agg(masks) of the paper. Sequences of a batch count as independent of each other.
// Windows longer than the unions that were measured are bounded by memory alone.
// REQUIRES: as LoadShare; masks >= 1
double WindowLoadShare(const LayerCalibration& layer, int64_t rows, int64_t masks, int64_t batch);

// ---- From masks

struct CalibrateOptions {
  int32_t neurons = 0;
  int32_t masks = 1;  // of the largest union
  std::vector<int32_t> batches = {1, 2, 4, 8};
  // Asked for every piece of the work, on its thread; once it is true, Cancelled.
  std::function<bool()> ends = [] { return false; };
  ForEach for_each = InTurn;             // shares the pieces; the order of neurons is found by one thread
  std::span<const int32_t> places = {};  // by neuron: its place, if bundles lie in this order; empty: on the path of the masks
};

// Batches with more sequences than there are were not measured, and are left out. The first half of a
// sequence fills the window and does not count.
// InvalidArgument for masks that are not of the layer, without a sequence of at least 2 tokens, or
// options outside their bounds.
absl::StatusOr<LayerCalibration> CalibrateLayer(int32_t layer, std::span<const SequenceMasks> sequences, const CalibrateOptions& options);

// InvalidArgument if the file of a calibration that is made with these options, whose layers have so many
// neurons, might be larger than kMostCalibrationBytes. options.neurons is not used.
absl::Status CheckCalibrationBytes(std::span<const int64_t> neurons, const CalibrateOptions& options);

// ---- The file

std::string EncodeCalibration(const Calibration& calibration);
// The commands that write one: of active neurons, and, into the file of a predictor, of predicted ones.
inline constexpr std::string_view kCalibrateCall = "lime calibrate", kTrainCall = "lime calibrate --predictor R";
// Reads an untrusted file; `name` names it in errors. InvalidArgument says what is wrong and where, and
// which command writes a new one.
absl::StatusOr<Calibration> ParseCalibration(std::string_view text, std::string_view name, std::string_view call = kCalibrateCall);

}  // namespace lime
