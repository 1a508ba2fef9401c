#include "coordinator/logic/cluster_difference.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/logic/cluster_rates.h"
#include "planner/plan/plan_blocks.h"

namespace lime {
namespace {

// The time of a part of the plan in one step, planned and measured.
struct PartTime {
  double planned_ms = 0, seen_ms = 0;

  double more() const { return seen_ms - planned_ms; }
};

struct Cause {
  DifferenceCause cause = DifferenceCause::kUnknown;
  double ms = 0;
  std::string text;
};

// In all sweeps of a step.
PartTime Computed(const Plan& plan, const DeviceWork& work) {
  if (work.statistics.decode_ms <= 0 || work.statistics.planned_decode_ms <= 0) return {};
  PartTime time;
  for (const int p : PartsOn(plan, DeviceNamed(plan, work.name))) time.planned_ms += plan.parts[p].hosted() ? 0 : plan.parts[p].decode_ms;
  time.planned_ms *= std::max(1, plan.microbatches);
  time.seen_ms = time.planned_ms * work.statistics.decode_ms / work.statistics.planned_decode_ms;
  return time;
}

// The time to read what the device streams in a step, and is expected to load on demand.
PartTime Read(const Plan& plan, const DeviceWork& work) {
  Bytes bytes = 0;
  for (const int p : PartsOn(plan, DeviceNamed(plan, work.name))) {
    const PlanPart& part = plan.parts[p];
    bytes += part.streamed ? part.bytes : static_cast<Bytes>(DemandBytes(part) * plan.microbatches);
  }
  const double planned = PlannedLoadMs(plan, work.name, work.statistics.disk_bytes);
  if (planned <= 0 || work.statistics.disk_ms <= 0) return {};
  const double in_step = PlannedLoadMs(plan, work.name, bytes);
  return {.planned_ms = in_step, .seen_ms = in_step * work.statistics.disk_ms / planned};
}

// Devices that are compared together: all devices of one machine, or one device.
std::vector<std::vector<const DeviceWork*>> Groups(const ClusterObservations& seen) {
  std::vector<std::vector<const DeviceWork*>> groups;
  std::vector<std::string> grouped;
  for (const auto& names : seen.shared) {
    std::vector<const DeviceWork*>& group = groups.emplace_back();
    for (const DeviceWork& work : seen.devices) {
      if (std::ranges::find(names, work.name) != names.end()) group.push_back(&work), grouped.push_back(work.name);
    }
  }
  for (const DeviceWork& work : seen.devices) {
    if (std::ranges::find(grouped, work.name) == grouped.end()) groups.push_back({&work});
  }
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  return groups;
}

std::string NamesOf(const std::vector<const DeviceWork*>& group, std::string_view shared) {
  const auto quoted = [](std::string* out, const DeviceWork* work) { absl::StrAppend(out, "\"", work->name, "\""); };
  if (group.size() == 1) return absl::StrCat("device \"", group.front()->name, "\"");
  return absl::StrCat("devices ", absl::StrJoin(group, ", ", quoted), ", which share the ", std::string(shared), " of one machine,");
}

// Devices compute one after another, so their extra times add up.
Cause OfComputing(const Plan& plan, const std::vector<const DeviceWork*>& group) {
  PartTime sum;
  for (const DeviceWork* work : group) {
    const PartTime time = Computed(plan, *work);
    sum.planned_ms += time.planned_ms, sum.seen_ms += time.seen_ms;
  }
  return {
      DifferenceCause::kDeviceRate, sum.more(),
      absl::StrFormat("%s computed for %.2f ms a step instead of the planned %.2f", NamesOf(group, "cores"), sum.seen_ms, sum.planned_ms)};
}

// Devices read in parallel, so the slowest one delays all others. Reading that overlaps with
// computing costs nothing.
Cause OfReading(const Plan& plan, const std::vector<const DeviceWork*>& group) {
  const double predicted_ms = plan.predicted.ms_per_token * std::max(1, plan.sequences);
  PartTime longest;
  for (const DeviceWork* work : group) {
    const PartTime time = Read(plan, *work);
    if (time.seen_ms > longest.seen_ms) longest = time;
  }
  const double longer = std::max(0.0, longest.seen_ms - std::max(longest.planned_ms, predicted_ms));
  const bool decided = longest.planned_ms >= 0.8 * predicted_ms;  // this disk decided it
  return {DifferenceCause::kDiskRate,
          longest.more() > 0 ? longer
          : decided          ? longest.more()
                             : 0,
          absl::StrFormat("the disk of %s read for %.2f ms a step instead of the planned %.2f", NamesOf(group, "disk"), longest.seen_ms,
                          longest.planned_ms)};
}

// One hidden state for every hop from one device to the other.
Cause OfLink(const Plan& plan, const LinkWork& link) {
  if (link.bytes_per_second <= 0 || link.planned_bytes_per_second <= 0) return {};
  const int32_t from = DeviceNamed(plan, link.from), to = DeviceNamed(plan, link.to);
  double times = 0;
  for (size_t j = 0; j < plan.stages.size(); ++j) {
    if (plan.stages[j].device == from && plan.stages[(j + 1) % plan.stages.size()].device == to) ++times;
  }
  const double planned_ms = times * plan.decode.tx_ms * std::max(1, plan.microbatches);
  return {DifferenceCause::kLinkRate, planned_ms * (link.planned_bytes_per_second / link.bytes_per_second - 1),
          absl::StrFormat("the link from \"%s\" to \"%s\" carries %.3g Mbit/s, but its profile says %.3g", link.from, link.to,
                          link.bytes_per_second / 125e3, link.planned_bytes_per_second / 125e3)};
}

}  // namespace

PredictionReport ExplainClusterDifference(const Plan& plan, double measured_ms, const ClusterObservations& seen) {
  const double predicted_ms = plan.predicted.ms_per_token;
  const PredictionObservations steps{
      .steps = seen.steps, .decode_seconds = seen.decode_seconds, .step_deviation_ms = seen.step_deviation_ms};
  PredictionReport report = ExplainDifference(predicted_ms, measured_ms, steps);
  if (!report.Differs()) return report;
  std::vector<Cause> causes;
  for (const auto& group : Groups(seen)) {
    causes.push_back(OfComputing(plan, group));
    causes.push_back(OfReading(plan, group));
  }
  for (const LinkWork& link : seen.links) causes.push_back(OfLink(plan, link));
  const double difference = (measured_ms - predicted_ms) * std::max(1, plan.sequences);  // per step
  Cause best{.text = "neither computing, disks nor links of its devices explain it; `lime profile --cluster` measures them again"};
  for (Cause& cause : causes) {
    const double ms = difference > 0 ? cause.ms : -cause.ms;
    if (ms >= kLeastExplained * std::abs(difference) && ms > std::abs(best.ms)) best = std::move(cause);
  }
  report.cause = best.cause;
  report.explained_ms = best.ms / std::max(1, plan.sequences);
  report.sentence = DifferenceText(report.error, best.text);
  return report;
}

}  // namespace lime
