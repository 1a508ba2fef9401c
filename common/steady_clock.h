// The clock for all measurements. It never goes back; its zero has no meaning.
#pragma once

#include <chrono>
#include <cstdint>

namespace lime {

inline double SteadyMs() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline int64_t SteadyUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lime
