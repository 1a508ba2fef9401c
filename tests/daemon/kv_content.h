// What the K and V of a position are in tests of KV without kernels: nothing else has the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "planner/base/bytes.h"

namespace lime {

inline constexpr Bytes kPositionBytes = 40;  // of one layer; 16 pages are no multiple of 4 KiB
inline constexpr int32_t kLayers[] = {0, 3};

inline std::byte Content(int64_t life, int64_t layer, int64_t sequence, int64_t position, int64_t i) {
  return static_cast<std::byte>((life * 131 + layer * 17 + sequence * 29 + position * 7 + position / 256 + i) & 0xff);
}

}  // namespace lime
