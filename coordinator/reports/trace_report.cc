#include "coordinator/reports/trace_report.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/reports/text_table.h"
#include "planner/plan/program.h"
#include "planner/sim/timeline_times.h"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr int kLeastGanttColumns = 40;

double EndOf(const Timeline& timeline) {
  double end_ms = 0;
  for (const TimelineSpan& span : timeline.spans) end_ms = std::max(end_ms, span.end_ms);
  return end_ms;
}

std::vector<DeviceTimes> TimesOfRun(const Timeline& timeline) {
  return TimesOf(timeline, 0, std::numeric_limits<double>::infinity());
}

std::string Percent(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.0f %%", part / whole * 100) : std::string();
}

json OrNull(std::optional<double> value) {
  return value ? json(*value) : json();
}

int64_t LostSpans(const MeasuredTimeline& trace) {
  int64_t lost = 0;
  for (const MeasuredTimeline::Device& device : trace.devices) lost += device.lost;
  return lost;
}

std::string DeviceTable(const MeasuredTimeline& trace, int columns) {
  using Align = TextTable::Align;
  const double end_ms = EndOf(trace.timeline);
  const std::vector<DeviceTimes> times = TimesOfRun(trace.timeline);
  TextTable table({Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kRight});
  table.AddRow({"device", "computes", "waits for weights", "for input", "disk reads", "link sends", "hidden", "clock"});
  for (size_t d = 0; d < times.size(); ++d) {
    if (!trace.devices[d].traced) continue;
    const DeviceTimes& of = times[d];
    const std::optional<double> hidden = HiddenLoading(of);
    table.AddRow({trace.timeline.devices[d], Percent(of.compute_ms, end_ms), Percent(of.wait_weights_ms, end_ms),
                  Percent(of.wait_input_ms, end_ms), Percent(of.load_ms, end_ms), Percent(of.send_ms, end_ms),
                  hidden ? Percent(*hidden, 1) : "-", absl::StrFormat("+-%.3f ms", trace.devices[d].clock_error_ms)});
  }
  return table.Text(columns, -1);
}

}  // namespace

std::string TraceSentence(const MeasuredTimeline& trace) {
  const std::optional<double> hidden = HiddenLoading(TimesOfRun(trace.timeline));
  std::string sentence = hidden ? absl::StrFormat("%.1f %% of the loading was hidden", *hidden * 100) : "nothing was loaded";
  absl::StrAppend(&sentence, "; ", trace.timeline.spans.size(), " spans");
  if (const int64_t lost = LostSpans(trace); lost > 0) absl::StrAppend(&sentence, ", and ", lost, " more did not fit in the buffers");
  return sentence;
}

std::string TraceText(const MeasuredTimeline& trace, int steps, int columns) {
  const std::vector<StepTime> all = StepsOf(trace.timeline);
  if (all.empty()) return "nothing was computed\n";
  const size_t shown = std::min(all.size(), static_cast<size_t>(std::max(steps, 1)));
  const StepTime& first = all[all.size() - shown];
  return absl::StrCat("steps ", first.step, " to ", all.back().step, ":\n",
                      GanttText(trace.timeline, first.begin_ms, all.back().end_ms, std::max(kLeastGanttColumns, columns - 24)),
                      "\nof the whole run:\n", DeviceTable(trace, columns), TraceSentence(trace), "\n");
}

json TraceReport(const MeasuredTimeline& trace, bool events) {
  const std::vector<DeviceTimes> times = TimesOfRun(trace.timeline);
  json devices = json::array(), steps = json::array(), spans = json::array();
  for (size_t d = 0; d < times.size(); ++d) {
    const MeasuredTimeline::Device& about = trace.devices[d];
    if (!about.traced) continue;
    devices.push_back({{"name", trace.timeline.devices[d]},
                       {"compute_ms", times[d].compute_ms},
                       {"wait_weights_ms", times[d].wait_weights_ms},
                       {"wait_input_ms", times[d].wait_input_ms},
                       {"load_ms", times[d].load_ms},
                       {"send_ms", times[d].send_ms},
                       {"hidden_loading", OrNull(HiddenLoading(times[d]))},
                       {"clock_error_ms", about.clock_error_ms},
                       {"round_trip_ms", about.round_trip_ms},
                       {"lost_spans", about.lost}});
  }
  for (const StepTime& step : StepsOf(trace.timeline))
    steps.push_back({{"step", step.step}, {"begin_ms", step.begin_ms}, {"end_ms", step.end_ms}});
  json report = {{"hidden_loading", OrNull(HiddenLoading(times))},
                 {"spans", trace.timeline.spans.size()},
                 {"lost_spans", LostSpans(trace)},
                 {"devices", std::move(devices)},
                 {"steps", std::move(steps)}};
  if (!events) return report;
  for (const TimelineSpan& span : trace.timeline.spans) spans.push_back(json(EventJson(trace.timeline, span)));
  report["events"] = std::move(spans);
  return report;
}

nlohmann::ordered_json EventJson(const Timeline& timeline, const TimelineSpan& span) {
  nlohmann::ordered_json event = {{"device", timeline.devices[span.device]},
                                  {"kind", kSpanKindNames.Of(span.kind)},
                                  {"begin_ms", span.begin_ms},
                                  {"end_ms", span.end_ms},
                                  {"step", span.step}};
  if (span.stage >= 0) event["stage"] = span.stage;
  if (span.microbatch >= 0) event["microbatch"] = span.microbatch;
  if (span.part >= 0) event["part"] = timeline.parts[span.part];
  if (span.part == kEmbeddingPart && span.kind == TimelineSpan::Kind::kCompute) event["part"] = "embedding";
  if (span.peer >= 0) event["peer"] = timeline.devices[span.peer];
  return event;
}

}  // namespace lime::cli
