// The clock by which a device is measured.
#pragma once

#include <chrono>

namespace lime {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace lime
