// Which contiguous ranges of files hold a set of tensors.
#pragma once

#include <vector>

#include "daemon/weights/block_reader.h"
#include "daemon/weights/loader.h"

namespace lime {

struct TensorExtent {
  Extent extent;
  size_t first = 0, last = 0;  // the wanted tensors inside: [first, last)
};

// Joins neighbours that are at most `max_gap` bytes apart: reading across a small gap costs less than another read.
// REQUIRES: `wanted` ascends by file and offset.
std::vector<TensorExtent> JoinExtents(const std::vector<WantedTensor>& wanted, Bytes max_gap);

}  // namespace lime
