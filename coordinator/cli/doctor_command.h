// lime doctor
#pragma once

#include "common/cli11.h"

namespace lime::cli {

// Sets `exit_code` where the command ran.
void AddDoctorCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
