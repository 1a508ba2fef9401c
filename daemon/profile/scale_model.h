// A small stand-in whose blocks take as long as a model's: a few of its layers, fewer ids where the vocabulary is large, one ring of memory
// under all weights. It needs neither the model's files nor its memory.
//
// Weights must come from memory where the model's do, so a sweep over the layers kept passes several times the last cache; a model that
// lies in the caches as a whole is kept as a whole.
#pragma once

#include <vector>

#include "daemon/weights/huge_buffer.h"
#include "kernels/backend.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"

namespace lime {

struct ScaleModel {
  ModelSpec spec;
  double head_factor = 1;  // time of the model's head over this one's
};

// The stand-in of which a sweep reads `sweep_bytes` of layers, or all layers there are.
ScaleModel MakeScaleModel(const ModelSpec& model, Bytes sweep_bytes);

// Memory that RingWeights need at least: the largest tensor.
Bytes LeastRingBytes(const ModelSpec& spec);

// Weights of every block of a spec, one after the other in a ring of memory that begins anew where it is full. Random, normal numbers of
// small size, so that nothing overflows or is slowed down by denormals.
class RingWeights {
 public:
  // Takes at most `most_bytes`. REQUIRES: most_bytes >= LeastRingBytes(spec)
  static absl::StatusOr<RingWeights> Make(const ModelSpec& spec, Bytes most_bytes);

  // In the order of the spec's blocks; they live as long as this.
  const std::vector<BlockWeights>& blocks() const { return blocks_; }
  Bytes bytes() const { return ring_.bytes(); }

 private:
  HugeBuffer ring_;
  std::vector<BlockWeights> blocks_;
};

// Of the caches of this machine, the largest; a guess where the system does not say.
Bytes LastCacheBytes();

}  // namespace lime
