#include "coordinator/cli/local_trace.h"

#include <utility>

#include "common/steady_clock.h"

namespace lime::cli {
namespace {

constexpr char kLocal[] = "local";

}  // namespace

absl::StatusOr<MeasuredTimeline> LocalTrace::Finish(std::vector<std::string> parts) {
  DeviceTrace trace{.device = kLocal, .lost = ring_.lost()};
  ring_.Take(ring_.size(), trace.spans);
  const double now_ms = SteadyMs();
  trace.clock.Add({.sent_ms = now_ms, .received_ms = now_ms, .answered_ms = now_ms, .came_ms = now_ms});
  LIME_ASSIGN_OR_RETURN(MeasuredTimeline measured, MergeTraces({kLocal}, std::move(parts), {std::move(trace)}));
  measured.devices[0].clock_error_ms = 0;  // it does not drift from itself
  return measured;
}

std::vector<std::string> PartsOfModel(const ModelSpec& spec) {
  std::vector<std::string> parts;
  for (const BlockSpec& block : spec.blocks) parts.push_back(BlockName(block.id));
  return parts;
}

}  // namespace lime::cli
