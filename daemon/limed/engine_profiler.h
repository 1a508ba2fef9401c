// A daemon that measures itself: its memory, its disk, and the kernels with a model's blocks.
#pragma once

#include <string>

#include "daemon/rpc/profiler.h"

namespace lime {

struct EngineProfilerOptions {
  int num_threads = 0;  // 0: one for every core this process may use
  std::string numerics = "auto";
  Bytes memory = 0;     // that the process may use; 0: not said
  std::string weights;  // folder, where a call names none
};

Profiler MakeEngineProfiler(const EngineProfilerOptions& options);

}  // namespace lime
