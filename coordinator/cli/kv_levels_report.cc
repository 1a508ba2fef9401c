#include "coordinator/cli/kv_levels_report.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lime::cli {
namespace {

// Read by each device in a step.
std::vector<Bytes> StreamedBytes(const Plan& plan, const KvLevel& level) {
  std::vector<Bytes> bytes(plan.devices.size(), 0);
  for (const int32_t part : level.residency.streamed) {
    bytes[static_cast<size_t>(plan.stages[static_cast<size_t>(StageOf(plan, part))].device)] += plan.parts[static_cast<size_t>(part)].bytes;
  }
  return bytes;
}

// Of each sequence, where all are as long.
int64_t Tokens(const Plan& plan, const KvLevel& level) {
  return level.residency.layer_pages / plan.sequences * kPageTokens;
}

}  // namespace

std::string KvLevelsText(const Plan& plan, const KvLevels& levels) {
  if (levels.levels.size() < 2 && levels.exhausted.empty()) return "";
  std::string text = "\nAs KV grows, more streams (tokens of each sequence; ms per token; read in a step by each device):\n";
  for (const KvLevel& level : levels.levels) {
    absl::StrAppend(&text, absl::StrFormat("  up to %6d tokens  %9.2f ms  ", Tokens(plan, level), level.ms_per_step / plan.sequences));
    const std::vector<Bytes> bytes = StreamedBytes(plan, level);
    for (size_t d = 0; d < bytes.size(); ++d) absl::StrAppend(&text, " ", plan.devices[d].name, " ", FormatBytes(bytes[d]));
    absl::StrAppend(&text, "\n");
  }
  if (!levels.exhausted.empty()) absl::StrAppend(&text, "  then no further: ", levels.exhausted, "\n");
  return text;
}

nlohmann::ordered_json ToJson(const Plan& plan, const KvLevels& levels) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const KvLevel& level : levels.levels) {
    array.push_back({{"tokens", Tokens(plan, level)},
                     {"layer_pages", level.residency.layer_pages},
                     {"ms_per_token", level.ms_per_step / plan.sequences},
                     {"streamed_bytes", StreamedBytes(plan, level)}});
  }
  return array;
}

}  // namespace lime::cli
