// Flags that would change nothing in the form of the call given: each is refused by name.
#pragma once

#include "common/cli11.h"
#include "planner/base/status.h"

namespace lime::cli {

// The first such flag of `command`, whose words are parsed.
absl::Status CheckFlagRules(const CLI::App& command);

}  // namespace lime::cli
