// Sparse parts of a plan (PlanPart::window_masks): an MLP block with ReLU whose neurons are read on
// demand.
//
//   parts of the block:   rows of the decider (gate of a gated MLP, else up), one or more parts
//                         the other rows, one sparse part
//   or, certified:        all rows, one sparse part
//
// The rows of the decider decide which neurons are active. What an active neuron needs besides is in
// its bundle (planner/demand/bundle_layout.h). A certified part has a low-bit copy of the decider in
// memory instead (PlanPart::decider_bits). It computes all neurons that the copy does not prove to be
// zero, from their whole records.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/demand/bundle_layout.h"
#include "planner/demand/mask_window.h"
#include "planner/demand/route_log.h"
#include "planner/plan/model/block_parts.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

inline constexpr int64_t kMaxNeurons = kMostRouteUnits;         // of a layer
inline constexpr int32_t kMaxWindowMasks = kMostWindowMasks;    // PlanPart::window_masks
inline constexpr int32_t kUsualWindowMasks = kMostWindowMasks;  // memory bounds the window: old masks leave first
inline constexpr Bytes kSparsePieceBytes = 4 * kMiB;            // of a piece of a sparse part's rows, about
inline constexpr int kSparsePieces = 2;                         // in memory: one is read while the other is computed
inline constexpr int kStreamsBesideNeurons = 2;    // reads of 1 MiB that stream at a time, so that neurons do not wait for long
inline constexpr Bytes kMaxNeuronBytes = 1 << 26;  // PlanPart::unit_bytes
inline constexpr int32_t kMostDeciderBits = 8, kMostDeciderDirections = 4096;

bool HasSparseParts(const Plan& plan);
bool HasSparseParts(const Plan& plan, int32_t device);
// "exact", "off", or "predicted", whether or not any part is sparse then.
std::string NameOfSparsity(const Plan& plan);

// Whether a micro-batch with so many rows computes sparse parts from active neurons.
inline bool ComputesNeurons(const Plan& plan, int64_t rows) {
  return rows <= plan.batch;
}

// Neurons of a sparse part's layer.  REQUIRES: the part is sparse; validated
int64_t NeuronsOf(const Plan& plan, int part);

// The role of the matrix that decides which neurons are active: gate of a gated MLP, else up.
TensorRole DeciderRole(const BlockSpec& mlp);
// The bundles of an MLP block.
// REQUIRES: an MLP block; its rows have 1 to kMostBundlePartBytes bytes
BundleLayout LayoutOf(const BlockSpec& mlp);
// The first part of a record that a sparse part reads, and memory for the parts from there on.
constexpr int FirstRecordPart(bool certified) {
  return certified ? 0 : 1;
}
Bytes NeuronBytes(const BlockSpec& mlp, bool certified);
// Memory of the copy of the block's decider, as its file has it (daemon/formats/decider_file.h).
Bytes CopyMemory(const BlockSpec& mlp, int bits, int64_t directions);
// Whether the decider of an MLP block may have a copy: its weights are dense.
bool MayHaveCopy(const BlockSpec& mlp);
// What decides which neurons of an MLP a step computes: a copy of the decider, or with 0 bits itself.
struct DeciderForm {
  int32_t bits = 0;
  int32_t directions = 0;

  friend bool operator==(const DeciderForm&, const DeciderForm&) = default;
};
// The bundles of a layer's MLP, with the copy of its decider.
struct HeldBundles {
  int32_t layer = 0;
  DeciderForm decider;

  friend bool operator==(const HeldBundles&, const HeldBundles&) = default;
};
// What the folder of a model has for sparse MLPs.
struct NeuronFiles {
  std::vector<HeldBundles> bundles;  // ascending layers
  std::string predictor;             // as Plan::predictor; empty: none

  friend bool operator==(const NeuronFiles&, const NeuronFiles&) = default;
};
// Directions of the largest copy on the device; -1: it has none.
int64_t CopiedDirections(const Plan& plan, int32_t device);

// Whether a sparse MLP block keeps a tensor in memory that streams with the rows of another block: scales
// and biases of packed groups behind the decider, since bundles have codes alone.
bool IsKeptForNeurons(const BlockSpec& mlp, const TensorSpec& tensor);
// InvalidArgument, with the reason, if the weights of an MLP block have no sparse form: only dense ones
// and affine groups have one. `hidden`: input features of up.
absl::Status CheckNeuronFormat(const BlockSpec& mlp, int64_t hidden);

// The rows of a sparse part in pieces of about kSparsePieceBytes and at least 64 rows, in order of
// use. LargestPiece: its bytes in memory.
std::vector<BlockPart> SparsePieces(const BlockSpec& mlp, const PlanPart& part);
Bytes LargestPiece(const BlockSpec& mlp, const PlanPart& part);

// Memory of a device for sparse parts besides their neurons: places for pieces, what IsKeptForNeurons,
// copies of deciders, and for every neuron its checksums, its place and the state of its window. Of any
// parts, or of those on the device. Places for pieces are for all its parts together; BesideNeurons is
// all else, of one part.
Bytes BesideNeurons(const ModelSpec& spec, const Plan& plan, int part);
Bytes SparseMemory(const ModelSpec& spec, const Plan& plan, std::span<const int> parts);
Bytes SparseMemory(const ModelSpec& spec, const Plan& plan, int32_t device);

// What a plan, or one device of it, keeps of the neurons of its sparse layers, and expects to read.
struct NeuronUse {
  int64_t layers = 0;  // 0: none is sparse
  int64_t neurons = 0, rows = 0;
  // In a decode step, with what a calibration says; without one, as if every neuron were active.
  bool calibrated = false;
  int64_t certified = 0;  // layers that a copy of the decider decides
  double computed = 0;    // neurons that one micro-batch computes: those that are active, or not proven to be zero
  double active = 0;      // of them, those that are not zero
  double loads = 0;       // of those of all micro-batches, the ones that are read
  double reads = 0;       // 0 without a calibration
  double bytes = 0;
  double read_ms = 0;  // if nothing else uses the disk

  // "sparse MLPs: 12.5 % of the neurons of 32 layers kept, 5.2 % active, 0.2 GiB read a token"; with copies
  // of deciders "…, 5.2 % active, 6.9 % computed with copies of the deciders of 30 layers, …"; without a
  // calibration "…, at most 3.2 GiB read a token"; empty without sparse layers.
  std::string Text(double tokens_per_step) const;
};
NeuronUse NeuronUseOf(const Plan& plan);
NeuronUse NeuronUseOf(const Plan& plan, int32_t device);

// Checks of Validate() for the sparse part `p`.  Returns InvalidArgument.
absl::Status CheckSparse(const Plan& plan, int p, const std::string& name);

}  // namespace lime
