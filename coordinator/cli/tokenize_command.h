// lime tokenize: text on stdin to ids, or back.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

// Adds the command to `app`; its exit code goes to `exit_code` when it has run.
void AddTokenizeCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
