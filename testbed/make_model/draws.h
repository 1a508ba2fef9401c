// Random numbers by their place: number i of a key is a function of both alone, so any thread draws
// any of them in any order.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "planner/base/check.h"

namespace lime {

inline constexpr int kLevels = 4 * 255 + 1;  // sums of four random bytes

// Random bits from a counter (the finaliser of splitmix64).
inline uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

inline uint64_t KeyOf(uint64_t seed, uint64_t stream) {
  return Mix(Mix(seed) + stream);
}

inline int SumOfBytes(uint32_t bits) {
  return static_cast<int>((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24));
}

// The level of number i. Two neighbours share the bits of one counter.
inline size_t LevelOf(uint64_t key, int64_t i) {
  const uint64_t bits = Mix(key + static_cast<uint64_t>(i / 2));
  return static_cast<size_t>(SumOfBytes(static_cast<uint32_t>(i % 2 == 0 ? bits : bits >> 32)));
}

// A level as a value of about the standard normal distribution.
inline float Normal(int level) {
  return static_cast<float>((level - 510) / std::sqrt(4 * (256.0 * 256.0 - 1) / 12));
}

// The value of every level.
inline std::array<float, kLevels> NormalTable() {
  std::array<float, kLevels> table;
  for (int level = 0; level < kLevels; ++level) table[static_cast<size_t>(level)] = Normal(level);
  return table;
}

// Numbers [first, ...) of the key as normal values.  REQUIRES: first is even
inline void DrawNormals(uint64_t key, int64_t first, std::span<float> out) {
  static const std::array<float, kLevels> kTable = NormalTable();
  LIME_CHECK_EQ(first % 2, 0);
  for (size_t i = 0; i < out.size(); i += 2) {
    const uint64_t bits = Mix(key + static_cast<uint64_t>(first / 2) + i / 2);
    out[i] = kTable[static_cast<size_t>(SumOfBytes(static_cast<uint32_t>(bits)))];
    if (i + 1 < out.size()) out[i + 1] = kTable[static_cast<size_t>(SumOfBytes(static_cast<uint32_t>(bits >> 32)))];
  }
}

}  // namespace lime
