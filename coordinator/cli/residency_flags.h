// Flags that say what stays in memory.
#pragma once

#include <string>

#include "common/cli11.h"
#include "coordinator/local/local_plan.h"
#include "planner/base/status.h"

namespace lime::cli {

struct ResidencyFlags {
  std::string memory;
  std::string priority = "balanced";
  std::string placement = "auto";
  std::string pool;
  std::string resident;

  void AddTo(CLI::App& app);
  // Refuses what is out of range.
  absl::Status Apply(LocalPlanRequest& request) const;
};

}  // namespace lime::cli
