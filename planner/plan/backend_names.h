// The names of cluster.toml and of flags for what computes blocks (kernels/registry/registry.h opens it) and for how weights reach memory
// (daemon/weights/loader_choice.h).
#pragma once

#include <array>

namespace lime {

inline constexpr const char* kCpuBackend = "cpu";      // our own operators, in every program that computes
inline constexpr const char* kTorchBackend = "torch";  // libtorch's operators, to compare with: an optional module
inline constexpr std::array<const char*, 2> kBackendNames = {kCpuBackend, kTorchBackend};
inline constexpr const char* kDaemonLoader = "read";  // of limed, where nothing is said
inline constexpr std::array<const char*, 3> kLoaderNames = {"auto", "read", "mmap"};

}  // namespace lime
