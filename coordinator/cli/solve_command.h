// lime solve: planner problems, JSON on stdin, JSON on stdout.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

// Adds the command to `app`; its exit code goes to `exit_code` when it has run.
void AddSolveCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
