// Which cluster.toml a command uses whose call names none: that of this folder, then the user's own.
//
// Commands that need a cluster take the default where `--cluster` is not given. Commands that also run without one (run, score, trace,
// plan, profile) take it for `--cluster` without a value alone, so that a file in the current folder never moves a local run elsewhere.
#pragma once

#include <string>

#include "common/command_line.h"
#include "planner/base/status.h"

namespace lime::cli {

// ./cluster.toml, then $XDG_CONFIG_HOME/lime/cluster.toml (~/.config where that is not set). A wrong call, which names both places, where
// neither is there.
absl::StatusOr<std::string> FindClusterFile();

// `given`, or the default where it is empty, which is named on stderr.
absl::StatusOr<std::string> ClusterFileOr(const std::string& given);

// --cluster of a command that needs a cluster: `path` stays empty where the call names none, see ClusterFileOr.
void AddClusterFlag(const CommandFlags& command, std::string& path);

// --cluster of a command that also runs without: `path` stays empty where the flag is not given. Without a value it becomes the default,
// which is named on stderr.
void AddOptionalClusterFlag(const CommandFlags& command, std::string& path, const std::string& help);

// The file that a value of --cluster means: itself, or the default. Empty where that is not there.
std::string ClusterFileMeant(const std::string& value);

}  // namespace lime::cli
