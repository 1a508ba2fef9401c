// Reports how devices change as the KV of a plan grows, as text and as JSON.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "planner/kv/kv_levels.h"

namespace lime::cli {

// One line per level; empty for a single level.
std::string KvLevelsText(const Plan& plan, const KvLevels& levels);

// [{"tokens", "layer_pages", "ms_per_token", "streamed_bytes": [by device], "kv_on_disk_bytes",
// "kv_on_hosts_bytes"}]
nlohmann::ordered_json ToJson(const Plan& plan, const KvLevels& levels);

}  // namespace lime::cli
