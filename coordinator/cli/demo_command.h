// lime demo: lets the shipped model tell a story and explains what happened.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

// Adds the command to `app`; its exit code goes to `exit_code` when it has run.
void AddDemoCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
