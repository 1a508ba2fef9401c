// A daemon that measures itself: its memory, its disk, and the kernels with a model's blocks.
#pragma once

#include <string>

#include "daemon/engine/cores.h"
#include "daemon/rpc/device_server.h"
#include "planner/plan/backend_names.h"

namespace lime {

struct EngineProfilerOptions {
  int num_threads = 0;                // 0: one for every core this process may use
  Cores cores;                        // that these keep to; empty: any
  std::string backend = kCpuBackend;  // of kernels/registry/registry.h
  std::string numerics = "auto";
  Bytes memory = 0;     // that the process may use; 0: not said
  std::string weights;  // folder, where a call names none
  std::string store;    // for what is pushed: its disk counts where there are no weights; empty: none
};

Profiler MakeEngineProfiler(const EngineProfilerOptions& options);

}  // namespace lime
