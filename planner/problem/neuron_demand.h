// What a micro-batch of a decode step is expected to compute and to read of a sparse MLP, and how long
// that takes, from what a text activates (planner/demand/calibration.h).
//
// Values are expected ones. Real steps spread around them.
#pragma once

#include <cstdint>
#include <optional>

#include "planner/demand/bundle_reads.h"
#include "planner/demand/calibration.h"
#include "planner/plan/device/device_profile.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// Reads of neurons that a device has under way (daemon/weights/neuron_reader.h).
inline constexpr int64_t kNeuronReadDepth = 32;

// The time of a burst of reads; nullopt if no disk was measured.
//
// Reading: profiles have it (DeviceProfile::bursts). One of an earlier release has rates alone: then the
// time of one of many reads is linear in its size, through the smallest size that was measured and
// sixteen times it. Without a read below kMostSmallRead, nothing is known of the fixed time of a read:
// then that of a virtual disk counts (flash.md, section 8).
inline constexpr Bytes kMostSmallRead = 128 * kKiB;
std::optional<BurstCost> BurstCostOf(const DeviceProfile& profile);

// A sparse layer of a plan.
struct NeuronPlace {
  const LayerCalibration* calibration = nullptr;  // not null; of a certified layer, of the neurons without a proof
  bool certified = false;                         // whole records are read
  bool on_path = true;                            // its bundles lie on the path of the calibration; else by number
  int64_t rows = 0;                               // memory for so many neurons
  int64_t masks = 0;                              // of the window, at most
  // Of a run whose memory begins without neurons: the decode steps that it makes, and the tokens before
  // them whose neurons are copied into memory. 0 steps: so many that the first ones do not matter.
  int64_t steps = 0;
  int64_t copied_tokens = 0;
};

// The mean of the steps.
struct NeuronDemand {
  double active = 0;      // neurons that the micro-batch computes: active ones, or those without a proof
  double loads = 0;       // of them, those that are not in memory
  double reads = 0;       // that bring them
  double bytes = 0;       // of these reads
  double io_ms = 0;       // of these reads, without other work of the disk
  double compute_ms = 0;  // of these neurons, and of the proofs
  double wait_ms = 0;     // of io_ms, what no computation hides
};

// Neurons that a read brings. Side by side as in the calibration, and at least as many as if the loads
// were spread at random over the file. Bundles that share pages are read one by one.
double NeuronsPerRead(const BlockSpec& mlp, const NeuronPlace& place, double load_share);
// The time that a neuron adds to a burst.
double NeuronReadMs(const BlockSpec& mlp, const NeuronPlace& place, double load_share, const BurstCost& burst);

// `decide_ms`: of the proofs; 0 where the decider is other parts. `dense_ms`: what the rows of the part take
// if all neurons are computed; `call_ms`: of starting a computation. `sequential_bytes_per_ms`: of the disk in large reads.
//
// Reading: computing takes time in proportion to the active neurons, those in memory in one call while
// the others are read, and those in another one. If less than one read is expected, there is one with
// this probability.
struct NeuronTimes {
  double decide_ms = 0;
  double dense_ms = 0;
  double call_ms = 0;
  BurstCost burst;
  double sequential_bytes_per_ms = 0;
};
// Reading: at first, memory has a neuron if any step or copied token before has used it. A step then loads
// what a window of as many neuron rows loads, until all rows are in use or the window has its masks.
//
// REQUIRES: an MLP block with as many neurons as the calibration; rows >= 1
NeuronDemand DemandOfNeurons(const BlockSpec& mlp, const NeuronPlace& place, int64_t batch, const NeuronTimes& times);

}  // namespace lime
