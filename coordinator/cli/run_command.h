// lime run: generates text from a checkpoint.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

// Adds the command to `app`; its exit code goes to `exit_code` when it has run.
void AddRunCommand(CLI::App& app, int& exit_code);

// The same with a trace of it, `lime trace`.
void AddTraceCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
