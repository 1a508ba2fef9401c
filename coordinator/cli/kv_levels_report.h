// What changes on the devices as the KV of a plan grows, for people and as JSON.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "planner/kv_levels.h"

namespace lime::cli {

// A line for each level; empty where there is one only.
std::string KvLevelsText(const Plan& plan, const KvLevels& levels);

// [{"tokens", "layer_pages", "ms_per_token", "streamed_bytes": [by device], "kv_on_disk_bytes", "kv_on_hosts_bytes"}]
nlohmann::ordered_json ToJson(const Plan& plan, const KvLevels& levels);

}  // namespace lime::cli
