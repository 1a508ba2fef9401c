// lime devices: what is there.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

void AddDevicesCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
