// A small generator (splitmix64) with the same numbers on every platform. A seed makes a search
// deterministic, and a random test repeatable.
#pragma once

#include <cstdint>

namespace lime {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // 0 to n - 1.  REQUIRES: n > 0
  int Below(int n) { return static_cast<int>((Next() >> 32) * static_cast<uint64_t>(n) >> 32); }
  // In [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  bool Chance(int percent) { return Below(100) < percent; }

 private:
  uint64_t state_;
};

}  // namespace lime
