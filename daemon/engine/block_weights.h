// A block as it was loaded, for the backend.
#pragma once

#include "daemon/weights/weight_store.h"
#include "kernels/backend.h"

namespace lime {

inline BlockWeights ToWeights(const LoadedBlock& block) {
  BlockWeights weights;
  weights.storage = block.storage;
  for (const LoadedTensor& tensor : block.tensors) weights.tensors.push_back(tensor.data);
  return weights;
}

}  // namespace lime
