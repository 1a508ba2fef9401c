// MLX's affine groups: q = round((w - bias) / scale) in a few bits, packed as one little-endian bit
// stream. Decoding gives w ~ scale * q + bias. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "planner/base/dtype.h"

namespace lime {

struct GroupScale {
  float scale = 0;
  float bias = 0;
};

// Quantises one group as MLX does. The range [min, max] has 2^bits - 1 steps. The step is then
// adjusted so that zero and the end of larger magnitude are both on the grid. The scale is negative
// if that end is the maximum. A group of zeros gives bias 0. A NaN or infinity in the group makes
// scale and bias NaN, so the error stays visible. Scale and bias are rounded to `stored`, the dtype
// of the checkpoint, and each code is the nearest one with the rounded values.
// REQUIRES: codes.size() == group.size(); IsWorkingDType(stored)
GroupScale QuantizeGroup(std::span<const float> group, int bits, DType stored, std::span<uint8_t> codes);

// Code i takes bits [i * bits, (i + 1) * bits) of the stream. A word holds 32 bits, lowest first.
// REQUIRES: words.size() * 32 == codes.size() * bits.
void PackCodes(std::span<const uint8_t> codes, int bits, std::span<uint32_t> words);

}  // namespace lime
