// Names of the backends that compute blocks. They appear in cluster.toml, in limed's flags and in
// kernels/registry/registry.h, which opens a backend by name.
#pragma once

#include <array>

namespace lime {

inline constexpr const char* kCpuBackend = "cpu";  // our operators; in every program
// libtorch, for comparison; an optional module.
inline constexpr const char* kTorchBackend = "torch";
inline constexpr std::array<const char*, 2> kBackendNames = {kCpuBackend, kTorchBackend};

}  // namespace lime
