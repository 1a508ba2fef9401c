// `lime unload`: takes a plan off the devices that a coordinator has left behind, or a person wants back.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

void AddUnloadCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
