// `lime store`: the models that devices hold, and their removal.
#pragma once

#include "common/cli11.h"

namespace lime::cli {

void AddStoreCommand(CLI::App& app, int& exit_code);

}  // namespace lime::cli
