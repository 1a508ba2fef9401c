// lime devices: what is there.
#pragma once

#include "CLI/CLI.hpp"

namespace lime::cli {

void AddDevicesCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
