// What computes a device's blocks, by name: in cluster.toml, in limed's flags, and in kernels/registry/registry.h, which opens it.
#pragma once

#include <array>

namespace lime {

inline constexpr const char* kCpuBackend = "cpu";      // our own operators, in every program that computes
inline constexpr const char* kTorchBackend = "torch";  // libtorch's operators, to compare with: an optional module
inline constexpr std::array<const char*, 2> kBackendNames = {kCpuBackend, kTorchBackend};

}  // namespace lime
