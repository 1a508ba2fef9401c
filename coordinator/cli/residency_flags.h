// Flags that say what stays in memory, and what of it a person reads.
#pragma once

#include <string>

#include "common/cli11.h"
#include "daemon/engine/engine.h"
#include "nlohmann/json.hpp"
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
  absl::Status Apply(Engine::Options& options) const;
};

// {"resident_bytes", "streamed_bytes", "ring_bytes", ...} of an engine.
nlohmann::json ResidencyJson(Engine& engine);
// "memory peak 2.60 GiB: weights …", and where something streams a second line: "streaming 1.20 GiB a token through …".
std::string MemoryText(Engine& engine);

}  // namespace lime::cli
