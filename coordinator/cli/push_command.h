// lime push: sends the devices of a cluster the weights that they need.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

void AddPushCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
