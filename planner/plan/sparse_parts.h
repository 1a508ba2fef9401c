// Sparse parts of a plan (PlanPart::window_masks): an MLP block with ReLU whose neurons are read on
// demand.
//
//   parts of the block:   rows of the decider (gate of a gated MLP, else up), one or more parts
//                         the other rows, one sparse part
//
// The rows of the decider decide which neurons are active. What an active neuron needs besides is in
// its bundle (planner/demand/bundle_layout.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
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
inline constexpr Bytes kMaxNeuronBytes = 1 << 26;               // PlanPart::unit_bytes

bool HasSparseParts(const Plan& plan);
bool HasSparseParts(const Plan& plan, int32_t device);

// Whether a micro-batch with so many rows computes sparse parts from active neurons.
inline bool ComputesNeurons(const Plan& plan, int64_t rows) {
  return rows <= plan.batch;
}

// Neurons of a sparse part's layer.  REQUIRES: the part is sparse; validated
int64_t NeuronsOf(const Plan& plan, int part);

// The role of the matrix that decides which neurons are active: gate of a gated MLP, else up.
TensorRole DeciderRole(const BlockSpec& mlp);
// Memory for the parts of a bundle behind the decider's.  REQUIRES: an MLP block; its rows have 1 to
// kMostBundlePartBytes bytes
Bytes NeuronBytes(const BlockSpec& mlp);

// The rows of a sparse part in pieces of about kSparsePieceBytes and at least 64 rows, in order of
// use. LargestPiece: its bytes in memory.
std::vector<BlockPart> SparsePieces(const BlockSpec& mlp, const PlanPart& part);
Bytes LargestPiece(const BlockSpec& mlp, const PlanPart& part);

// Memory of a device for sparse parts besides their neurons: places for pieces, and for every neuron
// its checksums, its place and the state of its window. Of any parts, or of those on the device.
Bytes SparseMemory(const ModelSpec& spec, const Plan& plan, std::span<const int> parts);
Bytes SparseMemory(const ModelSpec& spec, const Plan& plan, int32_t device);

// What a plan, or one device of it, keeps of the neurons of its sparse layers, and expects to read.
struct NeuronUse {
  int64_t layers = 0;  // 0: none is sparse
  int64_t neurons = 0, rows = 0;
  double bytes = 0;    // in a decode step
  double read_ms = 0;  // if nothing else uses the disk

  // "sparse MLPs: 12.5 % of the neurons of 32 layers kept, at most 3.2 GiB read a token"; empty without
  // sparse layers.
  std::string Text(double tokens_per_step) const;
};
NeuronUse NeuronUseOf(const Plan& plan);
NeuronUse NeuronUseOf(const Plan& plan, int32_t device);

// Checks of Validate() for the sparse part `p`.  Returns InvalidArgument.
absl::Status CheckSparse(const Plan& plan, int p, const std::string& name);

}  // namespace lime
