// What two folders have in common that hold the same weights, each in its own form.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/plan/model_spec.h"

namespace lime {

// Of the values of one block's tensors.
struct BlockDigest {
  BlockId block;
  uint64_t sample = 0;  // XXH3-64 of every tensor's dtype and shape, and of its bytes at places that role and shape fix
  uint64_t xxh3 = 0;    // of all bytes of the block, as a block store lays it out
  Bytes bytes = 0;      // of that layout; 0: its checksum is not known

  friend bool operator==(const BlockDigest&, const BlockDigest&) = default;
};

// Of a model, or of those of its blocks that one device uses.
struct WeightsDigest {
  std::string model;                // its name, for people
  uint64_t config = 0;              // XXH3-64 of what config.json says of the computation
  std::vector<BlockDigest> blocks;  // in execution order

  friend bool operator==(const WeightsDigest&, const WeightsDigest&) = default;
};

}  // namespace lime
