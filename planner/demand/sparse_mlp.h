// What a sparse MLP reads in a step and how long the step takes, from measured shares.
//
// Two exact ways decide which neurons are computed, and both give the same bits. `kDense` computes
// the decider in full: up of a plain MLP, gate of a gated one; a neuron is active if it is above the
// threshold. `kProven` takes a low-bit copy of the decider, and computes all neurons that the copy
// does not prove to be zero (common/proven_zeros). The paper ("LLM in a flash", section 3.1) predicts
// instead, and its results differ.
//
// Pure; sums, products and quotients are in a fixed order.
#pragma once

#include <cstdint>
#include <span>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/demand/bundle_reads.h"

namespace lime {

enum class SparseDecider : uint8_t {
  kDense,   // the decider itself
  kProven,  // a copy of it in few bits
};

struct SparseShares {
  int matrices = 2;               // of the MLP: 2, or 3 with a gate
  bool decider_resident = false;  // kDense: it is in memory, and not read
  double computed = 0;            // neurons that a step computes: active (kDense), or not proven zero (kProven)
  double missing = 0;             // of them, those that are not in memory
};

// InvalidArgument for shares that are not 0 to 1, or another number of matrices.
absl::Status CheckShares(const SparseShares& shares);

// Bytes that a step reads, as a share of the bytes of all matrices. kDense reads the decider unless it
// is in memory, and of new neurons the other matrices. kProven reads all matrices of new neurons.
double ReadShare(SparseDecider decider, const SparseShares& shares);

// Bytes of the copy of a decider: for each weight its bits, and 12 bits of every direction for each
// `cols` weights (8 of the row's kept error and, shared by the rows, at most 4).
Bytes CopyBytes(int64_t rows, int64_t cols, int bits, int64_t directions);

// Neurons that any of several unrelated rows computes: 1 - (1 - p_1) (1 - p_2) ...
double UnionOfRows(std::span<const double> shares);

// ---- Time of a step

struct SparseStep {
  double decide_ms = 0;         // the decider or its copy
  double held_ms = 0;           // neurons that are in memory: computed while the others are read
  double new_ms = 0;            // neurons that were read: computed afterwards
  double new_neurons = 0;       // expected number
  double neurons_per_read = 1;  // at least 1: joined reads
  Bytes bundle_bytes = 0;       // of a neuron, with what a read takes beside it
  Bytes region_bytes = 0;       // all bundles of the layer
  double sequential_bytes_per_ms = 0;
};

// Reads of the step: a burst, or the whole region one after another if that takes less time.
double ReadMs(const SparseStep& step, const BurstCost& burst);

// decide + max(held, reads) + new
double StepMs(const SparseStep& step, const BurstCost& burst);

}  // namespace lime
