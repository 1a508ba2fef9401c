// The stage that computes.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "daemon/engine/cores.h"
#include "daemon/stage/stage.h"
#include "daemon/weights/loader_choice.h"
#include "planner/plan/backend_names.h"
#include "planner/plan/device_profile.h"

namespace lime {

struct EngineStageOptions {
  int num_threads = 0;                // 0: one for every core this process may use
  Cores cores;                        // that these keep to; empty: any
  std::string backend = kCpuBackend;  // of kernels/registry/registry.h
  std::string numerics = "auto";
  LoaderKind loader = LoaderKind::kRead;
  int64_t planned_steps = 0;   // of each plan, for the choice of the loader; 0: those of one request of the whole context
  bool grow_kv = false;        // memory of KV comes as it is written, instead of up front; it counts in full all the same
  std::string kv_dir;          // for KV that memory has no room for; empty: the folder of the weights
  Bytes memory = 0;            // that the process may use; a plan that takes more is refused; 0: not said
  bool follow_memory = false;  // give weights back while others on the machine need the memory
  std::optional<PressureMonitor::Options> pressure;  // where the system is looked at, for tests
  absl::Duration pressure_hold = absl::Seconds(2);   // as StageEngine::Options
  std::optional<DeviceProfile> pace;                 // compute no faster than this device would (kernels/paced_backend.h)
  std::function<void(const std::string& sentence)> log;
};

StageFactory MakeEngineStages(const EngineStageOptions& options);

}  // namespace lime
