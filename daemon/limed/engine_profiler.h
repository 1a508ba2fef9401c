// A daemon that measures itself: its memory, its disk, and the kernels with a model's blocks.
#pragma once

#include <string>

#include "daemon/engine/stage_engine.h"
#include "daemon/rpc/device_server.h"

namespace lime {

// `weights`: their folder, where a call names none. `store`: for what is pushed: its disk counts where there are no weights; empty: none.
Profiler MakeEngineProfiler(const EngineSettings& settings, const std::string& weights, const std::string& store);

}  // namespace lime
