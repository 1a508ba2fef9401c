// Settings of limed: its flags give them, cluster.toml may ask for them, and its health reports
// them.
#pragma once

#include <cstdint>
#include <string>

#include "planner/plan/device/backend_names.h"

namespace lime {

// Empty or 0: not given.
struct DaemonSettings {
  std::string listen;   // host:port
  std::string weights;  // folder of the weights if an installation names none
  std::string store;    // folder for pushed weights; empty: none are taken
  std::string kv_dir;   // folder for KV that does not fit in memory; empty: that of the weights
  std::string tls;      // folder of the cluster's keys
  int32_t threads = 0;  // 0: one per core
  std::string backend = kCpuBackend, loader = kDaemonLoader;
  bool follow_memory = false;  // evicts weights while other programs need the memory
  std::string memory_mode;     // how limed chooses its memory; empty: it does not choose
  std::string cluster;         // of --background; else empty
  std::string user;            // of the process, in reports
  int64_t process = 0;         // in reports

  friend bool operator==(const DaemonSettings&, const DaemonSettings&) = default;
};

}  // namespace lime
