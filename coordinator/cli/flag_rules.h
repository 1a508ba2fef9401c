// Flags that would change nothing in the form of the call given: each is refused by name.
#pragma once

#include "CLI/CLI.hpp"
#include "planner/base/status.h"

namespace lime::cli {

// The first such flag of `command`, whose words are parsed.
absl::Status CheckFlagRules(const CLI::App& command);

}  // namespace lime::cli
