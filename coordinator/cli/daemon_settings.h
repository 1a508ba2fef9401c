// What a daemon runs with, compared with what cluster.toml says of it now. Pure.
#pragma once

#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/plan/backend_names.h"
#include "proto/convert.h"

namespace lime::cli {

// As cluster.toml says it; empty or 0: nothing.
struct WantedSettings {
  std::string cluster;  // its name
  std::string listen, weights, store, kv_dir, tls;
  Bytes memory = 0;
  int32_t threads = 0;
  std::string backend = kCpuBackend, loader = kDaemonLoader;
  bool follow_memory = false;
};

struct SettingDifference {
  std::string setting;    // as cluster.toml calls it
  std::string runs_with;  // "1.00 GiB"; "nothing"
  std::string file_says;

  friend bool operator==(const SettingDifference&, const SettingDifference&) = default;
};

// Whether `lime up` with this file started it.
bool IsStartedByUp(const DaemonSettings& settings, const WantedSettings& wanted);

// Of a daemon that `lime up` started, everything; of another one, what the file says. Nothing of a daemon that does not tell.
std::vector<SettingDifference> DifferencesOf(const DeviceHealth& health, const WantedSettings& wanted);

// "memory 1.00 GiB where the file says 2.00 GiB, and threads 1 where the file says 2"
std::string Sentence(const std::vector<SettingDifference>& differences);

}  // namespace lime::cli
