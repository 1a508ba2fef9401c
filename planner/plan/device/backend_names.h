// Names in cluster.toml, limed.toml and flags: backends (kernels/registry/registry.h), loaders
// (daemon/weights/loader_choice.h) and memory modes.
#pragma once

#include <array>

namespace lime {

inline constexpr const char* kCpuBackend = "cpu";  // our operators; in every program
// libtorch, for comparison; an optional module.
inline constexpr const char* kTorchBackend = "torch";
inline constexpr std::array<const char*, 2> kBackendNames = {kCpuBackend, kTorchBackend};
inline constexpr const char* kDaemonLoader = "read";  // limed's default
inline constexpr std::array<const char*, 3> kLoaderNames = {"auto", "read", "mmap"};
// In the order of MemoryPriority (planner/problem/memory_budget.h).
inline constexpr std::array<const char*, 3> kMemoryModeNames = {"max-tps", "balanced", "max-context"};

}  // namespace lime
