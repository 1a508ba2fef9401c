// lime simulate: the timeline of a plan, as text and as a Perfetto trace.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

// Adds the command to `app`; its exit code goes to `exit_code` when it has run.
void AddSimulateCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
