// lime up, lime down: the daemons of a cluster, on this machine and over ssh.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

void AddUpCommand(CLI::App& app, int& exit_code);
void AddDownCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
