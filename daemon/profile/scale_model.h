// A small stand-in whose blocks take as long as a model's. It has a few of the layers, at least one
// of each kind, fewer ids if the vocabulary is large, and one ring of memory for all weights. It
// needs neither the model's files nor its memory.
//
// Weights must come from memory if the model's weights do. So a sweep over the layers reads several
// times the bytes of the last cache. A model that fits in the caches is kept as a whole.
#pragma once

#include <vector>

#include "daemon/machine/huge_buffer.h"
#include "kernels/backend.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

struct ScaleModel {
  ModelSpec spec;
  double head_factor = 1;  // time of the model's head, divided by this head's
};

// The stand-in in which a sweep reads `sweep_bytes` of layers, or all layers.
ScaleModel MakeScaleModel(const ModelSpec& model, Bytes sweep_bytes);

// The least memory for RingWeights: the largest tensor.
Bytes LeastRingBytes(const ModelSpec& spec);

// Weights of every block of a spec, one after the other in a ring of memory that begins again when
// it is full. Small random normal numbers, so that nothing overflows and no denormals slow it down.
class RingWeights {
 public:
  // Takes `most_bytes` at most. REQUIRES: most_bytes >= LeastRingBytes(spec)
  static absl::StatusOr<RingWeights> Make(const ModelSpec& spec, Bytes most_bytes);

  // In the order of the spec's blocks; valid while this object lives.
  const std::vector<BlockWeights>& blocks() const { return blocks_; }
  Bytes bytes() const { return ring_.bytes(); }

 private:
  HugeBuffer ring_;
  std::vector<BlockWeights> blocks_;
};

// Size of this machine's largest cache; a guess if the system does not say.
Bytes LastCacheBytes();

}  // namespace lime
