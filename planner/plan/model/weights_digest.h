// Digests that are equal for two folders with the same weights, even in different file formats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// Digest of one block's tensors.
struct BlockDigest {
  BlockId block;
  // XXH3-64 of the dtype and shape of every tensor, and of its bytes at places that role and shape
  // fix.
  uint64_t sample = 0;
  uint64_t xxh3 = 0;  // of all bytes of the block in the layout of a block store
  Bytes bytes = 0;    // in that layout; 0: the checksum is unknown

  friend bool operator==(const BlockDigest&, const BlockDigest&) = default;
};

// Digest of a model, or of the blocks that one device uses.
struct WeightsDigest {
  std::string model;                // its name, for people
  uint64_t config = 0;              // XXH3-64 of the computation in config.json
  std::vector<BlockDigest> blocks;  // in execution order

  friend bool operator==(const WeightsDigest&, const WeightsDigest&) = default;
};

}  // namespace lime
