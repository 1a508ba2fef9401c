#include "coordinator/cluster_view/step_traces.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "coordinator/cluster_view/plan_view.h"
#include "coordinator/reports/trace_timeline.h"

namespace lime {
namespace {

constexpr int32_t kNoStep = -1;

int32_t NewestComputed(const std::vector<TimelineSpan>& spans) {
  int32_t newest = kNoStep;
  for (const TimelineSpan& span : spans) {
    if (span.kind == TimelineSpan::Kind::kCompute) newest = std::max(newest, span.step);
  }
  return newest;
}

}  // namespace

void StepTraces::Add(const std::string& device, double sent_ms, double came_ms, const TraceChunk& chunk) {
  Trace& trace = traces_[device];
  const ClockSample sample{.sent_ms = sent_ms, .received_ms = chunk.received_ms, .answered_ms = chunk.answered_ms, .came_ms = came_ms};
  trace.clock.Add(sample), trace.next.Add(sample);
  if (trace.next.samples() >= kSamples) trace.clock = std::exchange(trace.next, {});
  if (chunk.epoch < trace.epoch) return;
  if (chunk.epoch > trace.epoch) trace.spans.clear();
  trace.epoch = chunk.epoch;
  trace.quiet = chunk.spans.empty();
  trace.spans.insert(trace.spans.end(), chunk.spans.begin(), chunk.spans.end());
  const int32_t newest = NewestComputed(trace.spans);
  std::erase_if(trace.spans, [newest](const TimelineSpan& span) { return span.step + kKeptSteps < newest; });
  if (trace.spans.size() > kKeptSpans) trace.spans.erase(trace.spans.begin(), trace.spans.end() - kKeptSpans);
}

std::optional<StepTraces::Step> StepTraces::Newest(const Plan& plan) const {
  std::set<int32_t> used;
  for (const Stage& stage : plan.stages) used.insert(stage.device);
  int32_t step = std::numeric_limits<int32_t>::max();
  bool quiet = true;
  std::vector<DeviceTrace> traces;
  std::vector<const std::vector<TimelineSpan>*> spans;  // of each trace
  for (const int32_t device : used) {
    const std::string& name = plan.devices[static_cast<size_t>(device)].name;
    const auto found = traces_.find(name);
    if (found == traces_.end() || found->second.epoch != plan.epoch || found->second.clock.samples() == 0) return std::nullopt;
    step = std::min(step, NewestComputed(found->second.spans));
    traces.push_back({.device = name, .epoch = plan.epoch, .clock = found->second.clock});
    spans.push_back(&found->second.spans);
    quiet = quiet && found->second.quiet;
  }
  // The newest one may go on.
  if (!quiet) --step;
  if (step < 0) return std::nullopt;
  // Loads of the next step fall into this one.
  for (size_t i = 0; i < traces.size(); ++i) {
    std::ranges::copy_if(*spans[i], std::back_inserter(traces[i].spans),
                         [step](const TimelineSpan& span) { return std::abs(span.step - step) <= 1; });
  }
  std::vector<std::string> devices, parts;
  for (const PlanDevice& device : plan.devices) devices.push_back(device.name);
  for (int part = 0; part < plan.NumParts(); ++part) parts.push_back(PartName(plan, part));
  const absl::StatusOr<cli::MeasuredTimeline> measured = cli::MergeTraces(std::move(devices), std::move(parts), traces);
  if (!measured.ok()) return std::nullopt;
  Step newest{.step = step, .spans = SpansOfStep(measured->timeline, step)};
  return newest.spans.empty() ? std::nullopt : std::optional<Step>(std::move(newest));
}

}  // namespace lime
