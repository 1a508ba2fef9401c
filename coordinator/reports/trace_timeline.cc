#include "coordinator/reports/trace_timeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "planner/plan/program.h"

namespace lime::cli {
namespace {

using Kind = TimelineSpan::Kind;

bool Names(const TimelineSpan& span, const Timeline& timeline) {
  const int32_t parts = static_cast<int32_t>(timeline.parts.size()), devices = static_cast<int32_t>(timeline.devices.size());
  const bool message =
      span.kind == Kind::kSend || span.kind == Kind::kReceive || span.kind == Kind::kAttendFor || span.kind == Kind::kComputeFor;
  if (span.part < kEmbeddingPart || span.part >= parts || span.peer >= devices) return false;
  return message ? span.peer >= 0 : span.kind != Kind::kLoad || span.part >= 0;
}

absl::Status AddTrace(const DeviceTrace& trace, int32_t device, MeasuredTimeline& measured) {
  Timeline& timeline = measured.timeline;
  MeasuredTimeline::Device& about = measured.devices[static_cast<size_t>(device)];
  about = {.traced = true, .round_trip_ms = trace.clock.round_trip_ms(), .lost = trace.lost};
  for (TimelineSpan span : trace.spans) {
    if (!Names(span, timeline))
      return Invalid("device \"", trace.device, "\" sent a trace with steps or parts that its plan does not have");
    about.clock_error_ms = std::max({about.clock_error_ms, trace.clock.ErrorMs(span.begin_ms), trace.clock.ErrorMs(span.end_ms)});
    span.device = device;
    span.begin_ms = trace.clock.ToOurs(span.begin_ms);
    span.end_ms = trace.clock.ToOurs(span.end_ms);
    timeline.spans.push_back(span);
  }
  return absl::OkStatus();
}

void BeginAtZero(Timeline& timeline) {
  double first_ms = std::numeric_limits<double>::infinity();
  for (const TimelineSpan& span : timeline.spans) first_ms = std::min(first_ms, span.begin_ms);
  for (TimelineSpan& span : timeline.spans) span.begin_ms -= first_ms, span.end_ms -= first_ms;
}

// Messages of a link arrive in the order of sending. A message is on the link from the later of two
// moments, its own sending and the arrival of the message before, until it arrives.
// REQUIRES: spans are sorted
void FollowMessages(Timeline& timeline) {
  std::map<MessageKey, double> arrivals;
  for (const TimelineSpan& span : timeline.spans) {
    if (span.kind == Kind::kReceive) arrivals[MessageOf(span)] = span.begin_ms;
  }
  // For a link (from, to): when the newest message arrived.
  std::map<std::pair<int32_t, int32_t>, double> free;
  for (TimelineSpan& span : timeline.spans) {
    if (span.kind != Kind::kSend) continue;
    const auto arrival = arrivals.find(MessageOf(span));
    if (arrival != arrivals.end()) span.end_ms = std::max(span.end_ms, arrival->second);
    double& free_ms = free.try_emplace({span.device, span.peer}, span.begin_ms).first->second;
    span.begin_ms = std::min(std::max(span.begin_ms, free_ms), span.end_ms);
    free_ms = span.end_ms;
  }
}

}  // namespace

absl::StatusOr<MeasuredTimeline> MergeTraces(std::vector<std::string> devices, std::vector<std::string> parts,
                                             const std::vector<DeviceTrace>& traces) {
  MeasuredTimeline measured{.timeline = {.devices = std::move(devices), .parts = std::move(parts), .spans = {}}};
  measured.devices.resize(measured.timeline.devices.size());
  for (const DeviceTrace& trace : traces) {
    const auto device = std::ranges::find(measured.timeline.devices, trace.device);
    if (device == measured.timeline.devices.end() || trace.clock.samples() == 0) continue;
    LIME_RETURN_IF_ERROR(AddTrace(trace, static_cast<int32_t>(device - measured.timeline.devices.begin()), measured));
  }
  BeginAtZero(measured.timeline);
  SortSpans(measured.timeline.spans);
  FollowMessages(measured.timeline);
  SortSpans(measured.timeline.spans);
  return measured;
}

std::vector<StepTime> StepsOf(const Timeline& timeline) {
  std::map<int32_t, StepTime> steps;
  for (const TimelineSpan& span : timeline.spans) {
    if (span.kind != Kind::kCompute) continue;
    StepTime& step = steps.try_emplace(span.step, StepTime{span.step, span.begin_ms, span.end_ms}).first->second;
    step.begin_ms = std::min(step.begin_ms, span.begin_ms);
    step.end_ms = std::max(step.end_ms, span.end_ms);
  }
  std::vector<StepTime> times(steps.size());
  std::ranges::transform(steps, times.begin(), [](const auto& step) { return step.second; });
  return times;
}

}  // namespace lime::cli
