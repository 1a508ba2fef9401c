// The cluster.toml of a command that names none: first in the current folder, then the user's own.
//
// Commands that need a cluster use the default without `--cluster`. Commands that also run without
// one (run, score, trace, plan, profile) use it only for `--cluster` without a value, so a file in
// the current folder never moves a local run elsewhere.
#pragma once

#include <string>

#include "common/input/command_line.h"
#include "planner/base/status.h"

namespace lime::cli {

// ./cluster.toml, then $XDG_CONFIG_HOME/lime/cluster.toml (default ~/.config). If neither exists, a
// wrong call that names both.
absl::StatusOr<std::string> FindClusterFile();

// `given`, or the default if it is empty. Names the default on stderr.
absl::StatusOr<std::string> ClusterFileOr(const std::string& given);

// --cluster of a command that needs a cluster. `path` stays empty without the flag; see
// ClusterFileOr.
void AddClusterFlag(const CommandFlags& command, std::string& path);

// --cluster of a command that also runs without one. `path` stays empty without the flag. Without a
// value it becomes the default, which is named on stderr.
void AddOptionalClusterFlag(const CommandFlags& command, std::string& path, const std::string& help);

// The file for a value of --cluster: the value, or the default; empty if there is no default.
std::string ClusterFileMeant(const std::string& value);

}  // namespace lime::cli
