// Compares a daemon's settings with the settings in cluster.toml. Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cluster/cluster_config.h"
#include "proto/convert/convert.h"

namespace lime::cli {

struct SettingDifference {
  std::string setting;    // its name in cluster.toml
  std::string runs_with;  // "1.00 GiB"; "nothing"
  std::string file_says;

  friend bool operator==(const SettingDifference&, const SettingDifference&) = default;
};

// Whether `lime up` with this file started the daemon.
bool IsStartedByUp(const DaemonSettings& settings, const DaemonSettings& wanted);

// All differences for a daemon that `lime up` started. For other daemons only settings that the
// file gives. Empty if the daemon does not report its settings.
std::vector<SettingDifference> DifferencesOf(const DeviceHealth& health, const ClusterConfig::Device& wanted);

// "memory 1.00 GiB (the file says 2.00 GiB), and threads 1 (the file says 2)"
std::string Sentence(const std::vector<SettingDifference>& differences);

}  // namespace lime::cli
