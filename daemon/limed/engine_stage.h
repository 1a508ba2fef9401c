// The stage that computes, for a daemon.
#pragma once

#include <string>

#include "daemon/rpc/stage.h"

namespace lime {

struct EngineStageOptions {
  int num_threads = 0;  // 0: one for every core this process may use
  std::string numerics = "auto";
  Bytes memory = 0;  // that the process may use; a plan that takes more is refused; 0: not said
};

StageFactory MakeEngineStages(const EngineStageOptions& options);

}  // namespace lime
