// Lets a daemon measure itself: its memory, its disk, and the kernels with a model's blocks.
#pragma once

#include <string>

#include "daemon/engine/stage_engine.h"
#include "daemon/rpc/device_server.h"

namespace lime {

// `weights`: the folder of the weights if a call names none. `store`: the folder for pushed
// weights, whose disk is measured if there are no weights; empty: none.
Profiler MakeEngineProfiler(const EngineSettings& settings, const std::string& weights, const std::string& store);

}  // namespace lime
