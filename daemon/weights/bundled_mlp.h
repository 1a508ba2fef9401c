// Which tensors of a model its bundles are made of, and the shape of the bundles (bundle_file.h).
//
// Of packed groups, bundles have codes alone: scales and biases stay in memory.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/formats/bundle_file.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// The MLP of a layer. Pointers are into the ModelSpec.
struct BundledMlp {
  int32_t layer = 0;
  BundleShape shape;
  int code_bits = 0;    // of a weight
  bool packed = false;  // affine groups
  // gate of a gated MLP, up: [neurons, hidden].  down: [hidden, neurons].
  const TensorSpec* gate = nullptr;
  const TensorSpec* up = nullptr;
  const TensorSpec* down = nullptr;

  // Tensors whose rows are parts of the bundles, in the order of the parts; the last part is a column
  // of `down`.
  std::vector<const TensorSpec*> rows() const { return gate != nullptr ? std::vector{gate, up} : std::vector{up}; }
  // "bundles_0003.safetensors"
  std::string FileName() const;
};

// All layers with a dense MLP, ascending. InvalidArgument if no neuron of the model is ever exactly
// zero, that is if its activation is not ReLU or a form of it, if its layers have inputs of their own, or
// if bundles do not support the format of its weights. `name` (the folder) opens the error.
absl::StatusOr<std::vector<BundledMlp>> BundledMlps(const ModelSpec& spec, std::string_view name);

}  // namespace lime
