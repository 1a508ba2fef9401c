// lime doctor
#pragma once

#include "CLI/CLI.hpp"

namespace lime::cli {

// Sets `exit_code` where the command ran.
void AddDoctorCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
