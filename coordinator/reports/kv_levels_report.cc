#include "coordinator/reports/kv_levels_report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"

namespace lime::cli {
namespace {

// Weights that each device streams in a step.
std::vector<Bytes> StreamedBytes(const Plan& plan, const KvLevel& level) {
  std::vector<Bytes> bytes(plan.devices.size(), 0);
  for (const int32_t p : level.residency.streamed) {
    const PlanPart& part = plan.parts[static_cast<size_t>(p)];
    if (!part.is_kv()) bytes[static_cast<size_t>(plan.stages[static_cast<size_t>(StageOf(plan, p))].device)] += part.bytes;
  }
  return bytes;
}

// KV that each device reads from its disk in a step, or that its host keeps, when the level is
// full.
std::vector<Bytes> AwayBytes(const Plan& plan, const KvLevel& level) {
  std::vector<Bytes> bytes(plan.devices.size(), 0);
  for (size_t d = 0; d < bytes.size(); ++d) {
    const int64_t pages = level.residency.layer_pages - PagesInMemory(plan.devices[d], level.residency.layer_pages);
    bytes[d] = std::ssize(LayersOn(plan, static_cast<int>(d))) * pages * plan.page_bytes;
  }
  return bytes;
}

// Tokens per sequence, if all sequences have the same length. If all layers give pages back, the
// last level has room for the context.
int64_t Tokens(const Plan& plan, const KvLevel& level) {
  if (WindowOf(plan).positions > 0 && level.residency.layer_pages == FullLayerPages(plan)) return RoundUp(plan.context, kPageTokens);
  return level.residency.layer_pages / plan.sequences * kPageTokens;
}

// Why KV goes to a device's disk: how much of its weights could still stream.
std::string WhySpilled(const Plan& plan, const PlanDevice& device, const KvLevels& levels) {
  const auto d = &device - plan.devices.data();
  for (const KvLevel& level : levels.levels) {
    if (level.residency.layer_pages <= device.max_layer_pages) continue;
    Bytes resident = 0;
    for (const int p : PartsOn(plan, static_cast<int32_t>(d))) {
      const PlanPart& part = plan.parts[static_cast<size_t>(p)];
      if (!part.is_kv() && !std::ranges::binary_search(level.residency.streamed, p)) resident += MovableBytes(part);
    }
    if (resident == 0) return "all of its weights stream already";
    const Bytes rest = AwayBytes(plan, levels.levels.back())[static_cast<size_t>(d)];
    if (resident <= rest) return absl::StrCat("the ", FormatBytes(resident), " of resident weights would not make enough room");
    return absl::StrCat("this is faster on average than streaming more of the ", FormatBytes(resident), " of resident weights");
  }
  return "for contexts that no level has";
}

// Compares at the last level: fetching KV over the link, asking the host, and reading the same
// bytes from the device's disk.
std::string WhyHosted(const Plan& planned, const PlanDevice& of, const KvLevels& levels) {
  const int d = static_cast<int>(&of - planned.devices.data());
  const absl::StatusOr<Plan> at_last = WithResidency(planned, levels.levels.back().residency);
  const Plan& plan = at_last.ok() ? *at_last : planned;
  const PlanDevice& device = plan.devices[static_cast<size_t>(d)];
  const std::vector<int32_t> layers = LayersOn(plan, d);
  if (layers.empty()) return "for no layer";
  const int first = PartsOf(plan, {BlockKind::kAttention, layers.front()}).first;
  int asks = first;
  while (!plan.parts[static_cast<size_t>(asks)].is_kv()) ++asks;
  const double mb =
      static_cast<double>(AwayBytes(plan, levels.levels.back())[static_cast<size_t>(d)]) / 1e6 / static_cast<double>(layers.size());
  const int64_t pages = levels.levels.back().residency.layer_pages, in_time = LayersInTime(plan, d, pages);
  std::string text;
  if (device.kv_fetch_pieces > 0)
    text = absl::StrFormat("KV of %d of %d layers comes back in time over the link, in %.2f ms a layer, into %s of memory; ", in_time,
                           layers.size(), FetchLayerMs(plan, d, pages), FormatBytes(device.memory.fetched));
  if (device.asks_kv) {
    absl::StrAppendFormat(&text, "asking the host takes %.2f ms a layer", AnswerMs(plan, asks, pages));
  } else {
    absl::StrAppend(&text, in_time < std::ssize(layers) ? "computing waits for the others" : "computing waits for none");
  }
  if (device.disk_mb_per_ms <= 0) return absl::StrCat(text, ", and the device has no disk to stream from");
  return absl::StrCat(text, absl::StrFormat(", and reading as many bytes of KV or weights from its disk takes %.2f ms",
                                            mb / device.disk_mb_per_ms + device.disk_lat_ms));
}

std::string EvictionText(const Plan& plan, const KvLevels& levels) {
  std::string text = absl::StrCat("\nKV of the newest ", plan.retained_positions,
                                  " tokens of a sequence stays in memory; KV of all other tokens is computed again in every "
                                  "step (tokens of each sequence; ms per token):\n");
  for (const KvLevel& level : levels.levels)
    absl::StrAppend(&text, absl::StrFormat("  up to %6d tokens  %9.2f ms\n", std::min(plan.context, Tokens(plan, level)),
                                           level.ms_per_step / plan.sequences));
  return text;
}

}  // namespace

std::string KvLevelsText(const Plan& plan, const KvLevels& levels) {
  if (!RetainsAllKv(plan)) return EvictionText(plan, levels);
  if (levels.levels.size() < 2 && levels.exhausted.empty()) return "";
  std::string text = "\nAs KV grows, more parts stream (tokens of each sequence; ms per token; bytes that each device reads in a step):\n";
  for (const KvLevel& level : levels.levels) {
    absl::StrAppend(&text, absl::StrFormat("  up to %6d tokens  %9.2f ms  ", Tokens(plan, level), level.ms_per_step / plan.sequences));
    const std::vector<Bytes> bytes = StreamedBytes(plan, level), away = AwayBytes(plan, level);
    for (size_t d = 0; d < bytes.size(); ++d) {
      if (!HasPart(plan, static_cast<int>(d))) continue;
      absl::StrAppend(&text, " ", plan.devices[d].name, " ", FormatBytes(bytes[d]));
      if (away[d] > 0 && HasKvOnDisk(plan.devices[d])) absl::StrAppend(&text, " + KV ", FormatBytes(away[d]));
      if (away[d] > 0 && HasKvOnHost(plan.devices[d]))
        absl::StrAppend(&text, " (KV ", FormatBytes(away[d]), " with ", plan.devices[static_cast<size_t>(plan.devices[d].kv_host)].name,
                        ")");
    }
    absl::StrAppend(&text, "\n");
  }
  for (const PlanDevice& device : plan.devices) {
    if (device.max_layer_pages == 0) continue;
    absl::StrAppend(&text, "  ", device.name, " keeps KV of ", device.max_layer_pages * kPageTokens / plan.sequences,
                    " tokens of each sequence in memory and the rest ",
                    HasKvOnHost(device)
                        ? absl::StrCat("in the memory of ", plan.devices[static_cast<size_t>(device.kv_host)].name,
                                       device.asks_kv ? ", which computes attention to it: " : ": ", WhyHosted(plan, device, levels))
                        : absl::StrCat("on its disk: ", WhySpilled(plan, device, levels)),
                    "\n");
  }
  if (!levels.exhausted.empty()) absl::StrAppend(&text, "  KV grows no further: ", levels.exhausted, "\n");
  return text;
}

nlohmann::ordered_json ToJson(const Plan& plan, const KvLevels& levels) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const KvLevel& level : levels.levels) {
    std::vector<Bytes> on_disk = AwayBytes(plan, level), on_hosts = on_disk;
    for (size_t d = 0; d < on_disk.size(); ++d) (HasKvOnHost(plan.devices[d]) ? on_disk : on_hosts)[d] = 0;
    array.push_back({{"tokens", Tokens(plan, level)},
                     {"layer_pages", level.residency.layer_pages},
                     {"ms_per_token", level.ms_per_step / plan.sequences},
                     {"streamed_bytes", StreamedBytes(plan, level)},
                     {"kv_on_disk_bytes", on_disk},
                     {"kv_on_hosts_bytes", on_hosts}});
  }
  return array;
}

}  // namespace lime::cli
