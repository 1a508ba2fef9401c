// lime prepare: writes the block store that streams fastest, and verifies it.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

// Adds the command to `app`; its exit code goes to `exit_code` when it has run.
void AddPrepareCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
