// How many zeros of a layer a low-bit copy of its decider proves (common/proven_zeros), measured on text.
//
// The first three quarters of the inputs teach the frame, and the others are measured. Proofs come from
// the kernel of every run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/proven_zeros/input_frame.h"
#include "daemon/calibration/mask_run.h"
#include "planner/base/status.h"
#include "planner/demand/calibration.h"

namespace lime {

// A form of a copy.
struct CopyForm {
  int bits = 0;
  int64_t directions = 0;
};

// Copies of 5, 6 and 8 bits, each with cols / 16 and cols / 8 directions.
std::vector<CopyForm> UsualCopyForms(int64_t cols);

// With so many directions, or fewer if the inputs differ in fewer. Once inputs.cancelled is set, some
// frame, soon.
InputFrame FrameOf(const LayerInputs& inputs, int64_t directions);

// In the order of the forms, each with the first directions of `frame`; nothing if the decider's order of
// sums has no proof. InternalError if a proof is wrong: a proven neuron is active. Cancelled once
// inputs.cancelled is set.
absl::StatusOr<std::vector<ProvenShare>> MeasureProofs(const LayerInputs& inputs, const InputFrame& frame, std::span<const CopyForm> forms,
                                                       int num_threads);

// By sequence and token of inputs.last_masks: the neurons that a copy in this form does not prove to be zero.
// `frame`: with as many directions as the form. InternalError if a proof is wrong. Cancelled once
// inputs.cancelled is set.
absl::StatusOr<std::vector<SequenceMasks>> UnprovenMasks(const LayerInputs& inputs, const InputFrame& frame, int bits, int num_threads);
// The same of a copy that is there.
absl::StatusOr<std::vector<SequenceMasks>> UnprovenMasks(const LayerInputs& inputs, const DeciderView& copy, int num_threads);

}  // namespace lime
