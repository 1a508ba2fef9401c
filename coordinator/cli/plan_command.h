// lime plan: which device would run what, how fast, and why; nothing is loaded.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

// Adds the command to `app`; its exit code goes to `exit_code` when it has run.
void AddPlanCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
