// lime keys: an authority for a cluster, and a key for each of its devices.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

// Adds the command to `app`; its exit code goes to `exit_code` when it has run.
void AddKeysCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
