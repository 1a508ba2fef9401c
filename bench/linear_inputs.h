// What the programs that measure matrices share: times, weights, and flags of the form --name=value.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <string_view>

#include "daemon/profile/limits.h"
#include "kernels/cpu/linear/linear.h"

namespace lime::bench {

inline double Seconds(const std::function<void()>& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// bf16 values of ordinary size, whichever format reads them.
inline void FillWithWeights(const HugeMemory& memory) {
  std::mt19937 rng(1);
  auto* p = reinterpret_cast<uint16_t*>(memory.data());
  for (int64_t i = 0; i < memory.bytes() / 2; ++i) p[i] = static_cast<uint16_t>(0x3c00 | (rng() & 0x83ff));
}

// The value of --numerics.
inline cpu::Numerics NumericsOf(std::string_view value) {
  if (value == "portable") return cpu::Numerics::kPortable;
  if (value == "bf16-dot") return cpu::Numerics::kBf16Dot;
  return value == "emulated" ? cpu::Numerics::kEmulatedBf16 : cpu::Numerics::kAuto;
}

// Calls `set` with each flag and its value. False if it does not know one; then the usage is printed.
inline bool ReadFlags(int argc, char** argv, const char* usage,
                      const std::function<bool(std::string_view flag, const std::string& value)>& set) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const size_t equals = arg.find('=');
    if (set(arg.substr(0, equals), std::string(equals == arg.npos ? "" : arg.substr(equals + 1)))) continue;
    std::fprintf(stderr, "usage: %s\n", usage);
    return false;
  }
  return true;
}

}  // namespace lime::bench
