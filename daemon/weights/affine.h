// MLX's affine groups: q = round((w - bias) / scale) in a few bits, packed as one little-endian bit stream; w is about scale * q + bias.
// Pure.
#pragma once

#include <cstdint>
#include <span>

namespace lime {

struct GroupScale {
  float scale = 0;
  float bias = 0;
};

// Quantises one group as MLX does: the range [min, max] in 2^bits - 1 steps, then the step is bent a little so that zero and the end of
// larger magnitude are both on the grid. The scale is negative where that end is the maximum. A group of zeros gives bias 0.
// A NaN or infinity in the group makes scale and bias NaN, so that it is not hidden. REQUIRES: codes.size() == group.size().
GroupScale QuantizeGroup(std::span<const float> group, int bits, std::span<uint8_t> codes);

// Code i takes bits [i * bits, (i + 1) * bits) of the stream; words hold 32 of them, lowest first.
// REQUIRES: words.size() * 32 == codes.size() * bits.
void PackCodes(std::span<const uint8_t> codes, int bits, std::span<uint32_t> words);

}  // namespace lime
