// The frames of the copies of deciders that a calibration found (common/proven_zeros/input_frame.h): of
// each layer the mean of the decider's inputs and their main directions. `lime calibrate` writes them into
// a file beside the calibration, and `lime prepare --bundles` makes copies with them.
//
// It is a safetensors file, but has no name of weights:
//
//   layer.N.mean   F32 [columns]
//   layer.N.axes   BF16 [directions, columns]
//
// The calibration has the checksum of the whole file. The file is hostile input: an error is one sentence
// that names it and the tensor.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/proven_zeros/decider_copy.h"
#include "planner/base/status.h"
#include "planner/demand/calibration.h"

namespace lime {

struct LayerFrame {
  int32_t layer = 0;
  InputFrame frame;
};

// Of the calibration in this file: "calibration.json" has "calibration.frames".
std::string FramesFile(const std::string& calibration_file);

// InvalidArgument if a file that LIME did not write is there. Changes nothing.
absl::Status CheckFramesFile(const std::string& path);

// Writes the file, or replaces it, and returns its checksum in 16 hexadecimal digits. Directions are written
// as bf16.  REQUIRES: every frame has as many columns as its mean
absl::StatusOr<std::string> WriteFrames(const std::string& path, std::span<const LayerFrame> frames);

// The frames of all copies of the calibration, in its order. NotFound if there is no such file; DataLoss if it is not
// the one that was written with the calibration; InvalidArgument if it does not have what these copies need.
absl::StatusOr<std::vector<LayerFrame>> ReadFrames(const std::string& path, const Calibration& calibration);

// By layer: what makes the copies that the calibration learned with these frames, which are of it. InvalidArgument
// for a number that is not finite.
absl::StatusOr<std::map<int32_t, std::shared_ptr<const RowCopier>>> CopiersOf(std::span<const LayerFrame> frames,
                                                                              const Calibration& calibration);

}  // namespace lime
